"""Keeps the write-ahead log short and quick, away from the writer's path."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import apsw

from holdfast.errors import StoreError
from holdfast.store.sqlite.pages import PAGE_BYTES

MOVE_AT_PAGES = 4000
GROW_AT_COMMITS = 8
GROW_PAGES = 1000
AHEAD_PAGES = 200
FRAME_BYTES = PAGE_BYTES + 24
_ZEROS = bytes(1 << 16)
_PLENTY = 1 << 24


class WalKeeper:
    """A background thread that moves the WAL into the file and lets it grow in one go.

    Commits are nearly twice as fast where the WAL has been before, because overwriting beats allocating: so
    1 MB of zeros is put behind its end, and again before they are used up. SQLite reads frames only as
    far as it has written them, and while the keeper holds the write lock nobody appends. A new file gets them
    when it is made, which takes a millisecond; in one that was there, a few commits come first to be worth it.
    """

    def __init__(self, lock: threading.Lock, writer: apsw.Connection, connect: Callable[[], apsw.Connection]) -> None:
        self._lock, self._writer, self._connect = lock, writer, connect
        self._wake = threading.Event()
        self._stopped = False
        self._commits = self._pages = self._ready = 0
        """Commits since it has grown; pages that are in use; pages that it has room for."""
        self._thread: threading.Thread | None = None

    def watch(self, writer: apsw.Connection) -> None:
        """Look after this connection from now on."""
        self._writer = writer

    def written(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        """Called by SQLite after each commit, on the writer's thread: only looks whether there is work."""
        self._commits += 1
        self._pages = pages
        if pages >= MOVE_AT_PAGES or self._is_short():
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-wal", daemon=True)
                self._thread.start()
            self._wake.set()
        return apsw.SQLITE_OK

    def _is_short(self) -> bool:
        return self._commits >= GROW_AT_COMMITS and self._pages + AHEAD_PAGES > self._ready

    def make_room(self, connection: apsw.Connection) -> None:
        """Let the log grow now, while nobody waits for a commit yet; if it cannot, it will when it is used."""
        with suppress(apsw.Error, OSError):
            self._grow(connection)

    def stop(self) -> None:
        """End the thread. The last connection to close moves what is left."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopped:
                return
            try:
                connection = connection or self._connect()
                if self._is_short():
                    self._grow(connection)
                if self._pages >= MOVE_AT_PAGES:
                    self._move(connection)
            except (apsw.Error, OSError, StoreError):
                pass  # upkeep only: the writer meets the same trouble and reports it

    def _grow(self, connection: apsw.Connection) -> None:
        file = os.open(f"{connection.filename}-wal", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            with self._lock:
                connection.execute("begin immediate")
                try:
                    self._commits, self._ready = 0, self._pages + GROW_PAGES
                    end, needed = os.fstat(file).st_size, self._ready * FRAME_BYTES
                    if 0 < end < needed and _has_plenty(file):
                        # The same zeros again and again: to have a megabyte of them takes longer than to write it.
                        os.pwritev(file, [_ZEROS] * ((needed - end) // len(_ZEROS) + 1), end)
                finally:
                    connection.execute("rollback")
            os.fdatasync(file)  # so that no commit has to wait for all of it
        finally:
            os.close(file)

    def _move(self, connection: apsw.Connection) -> None:
        pages, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if moved < pages and pages >= 4 * MOVE_AT_PAGES:
            # Commits went on meanwhile, so the WAL could not begin anew: catch up with the writer held.
            with self._lock:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def _has_plenty(file: int) -> bool:
    """Whether the disk can spare room for later: the last of it is for what has to be written."""
    disk = os.fstatvfs(file)
    return disk.f_bavail * disk.f_frsize >= _PLENTY
