"""The connections of one process to one SQLite file, and who may use which.

One connection writes, under a lock, on whatever thread has the work: the event loop's own when
nothing stands in the way, else the writer's. Readers have connections of their own, so they
never hold the writer up. A fourth one moves the WAL into the file, in the background. A forked
child never touches what it inherited: SQLite forbids it.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.errors import StoreDamagedError, StoreError, StoreUnavailableError
from holdfast.faults import fault
from holdfast.store.readonly import why_unwritable
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.pages import PAGE_BYTES, Room
from holdfast.store.sqlite.wal import WalKeeper

T = TypeVar("T")

_MOMENT = 0.002
BUSY_MS = 10_000  # well within the default lease, so that a heartbeat gives up before others take over
_creating = threading.Lock()  # closing a file takes away the locks that SQLite has on it anywhere in this process
_inherited: list[object] = []  # kept so that a forked child never closes its parent's connections

_OPTIONS = (
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1),  # else some statements are made ready anew for each value they get
)
_DAMAGED = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """A context that turns SQLite's errors into ours, with the original as the cause."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise _ours(path, error) from error


def _ours(path: Path, error: apsw.Error | OSError) -> StoreError:
    if isinstance(error, _DAMAGED):
        return StoreDamagedError(None, None, f"{path}: {error}")
    return StoreUnavailableError(_told(path, error))


def _told(path: Path, error: apsw.Error | OSError) -> str:
    readonly = None if isinstance(error, apsw.BusyError) else why_unwritable(path, path.parent)
    if readonly is not None:
        return readonly
    what = error.strerror if isinstance(error, OSError) else f"{type(error).__name__.removesuffix('Error')}: {error}"
    return (
        f"{path}: {what or error}. Nothing unacknowledged was counted as done; free space or mend the disk and its "
        f"permissions, then run it again."
    )


def check_path(path: Path) -> None:
    """Refuse what is not a plain file before SQLite touches it."""
    if not path.parent.is_dir():
        raise StoreUnavailableError(f"the folder {path.parent} does not exist. Create it, or name another file.")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise StoreUnavailableError(f"{path} is not a plain file (a folder, link or device). Name another one.")
    if os.path.getsize(path) == 0 and Path(f"{path}-owners").exists() and Path(f"{path}-wal").exists() is False:
        raise StoreDamagedError(None, None, f"{path} is empty but was a store once; put a copy back or remove it")


def _renew_lock() -> None:
    global _creating
    _creating = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # the thread that holds it is not there any more


def _enter_wal(connection: apsw.Connection) -> object:
    """The journal mode that the file then has. SQLite does not wait by itself for others who do the same just now."""
    until = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            return connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(_MOMENT)


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


class Connections:
    """Opened lazily and for good; one object per process and store."""

    def __init__(self, path: Path, *, synchronous: str, vfs: str | None) -> None:
        self.path, self._synchronous, self._vfs = path, synchronous, vfs
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.room = Room()
        self.writers = ThreadPoolExecutor(1, "holdfast-write")
        self.readers = ThreadPoolExecutor(2, "holdfast-read")
        self._local = threading.local()
        self._all: list[apsw.Connection] = []
        self._wal: WalKeeper | None = None
        self._watch_lock = threading.Lock()
        self._file: tuple[int, int] | None = None
        self._gone: str | None = None
        """What became of the file, where that is no longer the one that is open."""
        check_path(path)
        try:
            with translated(path):
                with _creating:
                    if not path.exists():
                        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
                self.write_connection = self._connect()
                self._prepare(self.write_connection)
                # Not before it was written: an overlay file system gives it another number then.
                self._file = _file_at(path)
                self._watch = self._connect()
        except BaseException:
            self.close()
            raise

    def _prepare(self, connection: apsw.Connection) -> None:
        # The version is read before anything is changed: a newer store is refused as it was.
        new = schema.version(connection) == 0
        if new:
            connection.pragma("page_size", PAGE_BYTES)
        fault("open.before")
        if _enter_wal(connection) != "wal":
            raise StoreUnavailableError(f"{self.path}: this file system does not support SQLite's WAL mode")
        fault("open.after")
        connection.wal_autocheckpoint(0)
        self._wal = WalKeeper(self.lock, connection, self._connect)
        connection.set_wal_hook(self._wal.written)
        schema.migrate(connection)
        if new:
            self._wal.make_room(connection)
        connection.set_busy_timeout(0)

    def look_after_file(self) -> None:
        """See whether the file that is open still has its name: what is written to any other one is lost.

        From then on reading and writing are refused, until it is back. Not looked at by every commit, which would take
        a noticeable part of its time.
        """
        with translated(self.path):
            there = self._file is None or _file_at(self.path) == self._file
        self._gone = None
        if not there:
            self._gone = (
                f"{self.path} was removed or replaced while it was open, so what was written since may be in no file "
                f"that has a name. Put it back where it was, or end every process that uses it and begin again."
            )

    def _refuse_if_gone(self) -> None:
        if self._gone is not None:
            raise StoreUnavailableError(self._gone)

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)
        try:
            connection.set_busy_timeout(BUSY_MS)
            for option, value in _OPTIONS:
                connection.config(option, value)
            connection.pragma("synchronous", self._synchronous)
            self.look_after_file()
            self._refuse_if_gone()
        except BaseException:
            connection.close()
            raise
        self._all.append(connection)
        return connection

    def reader(self) -> apsw.Connection:
        """The calling thread's own connection for reading."""
        self._refuse_if_gone()
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            connection.pragma("query_only", 1)
        return connection

    def data_version(self) -> int:
        """A number that is another one after every commit by anybody."""
        with self._watch_lock, translated(self.path):
            return int(self._watch.pragma("data_version"))

    def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """`work` in one transaction, waiting for other writers. On any error nothing of it remains."""
        with self.lock:
            self.write_connection.set_busy_timeout(BUSY_MS)
            try:
                return self._transact(work)
            finally:
                self.write_connection.set_busy_timeout(0)

    def write_now(self, work: Callable[..., T], *given: Any, **how: Any) -> T | None:
        """The same without waiting for anybody: None when another writer is at it."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            return self._transact(work, *given, **how)
        except StoreUnavailableError as error:
            if isinstance(error.__cause__, apsw.BusyError):
                return None
            raise
        finally:
            self.lock.release()

    def _transact(self, work: Callable[..., T], *given: Any, **how: Any) -> T:
        if self._gone is not None:
            self._refuse_if_gone()
        try:
            return work(self.write_connection, *given, **how)
        except (apsw.Error, OSError) as error:
            self._take_back(broken=not isinstance(error, apsw.BusyError))
            raise _ours(self.path, error) from error
        except BaseException as error:
            self._take_back(broken=isinstance(error, StoreError))
            raise

    def _take_back(self, *, broken: bool) -> None:
        """Leave nothing of the transaction under way."""
        if broken:
            self._reopen()
        # Also where it could not be opened anew: else the next step would go into that transaction, which nobody ends.
        with suppress(apsw.Error):
            if self.write_connection.in_transaction:
                self.write_connection.execute("rollback")

    def _reopen(self) -> None:
        # After a failed write or flush the old handle knows less than the disk: never try it again.
        connection = self.write_connection
        connection.set_wal_hook(None)
        try:
            fresh = self._connect()
            self._all.remove(connection)
            connection.close()
            fresh.wal_autocheckpoint(0)
            fresh.set_busy_timeout(0)
            if self._wal is not None:
                self._wal.watch(fresh)
                fresh.set_wal_hook(self._wal.written)
            self.write_connection = fresh
        except (apsw.Error, StoreError):
            pass  # still broken: the next write meets the same error and tries again

    def close(self) -> None:
        """Close everything; the last process to do so leaves a single file behind."""
        if self.pid != os.getpid():
            _inherited.append(self)
            return
        self.writers.shutdown()
        self.readers.shutdown()
        if self._wal is not None:
            self._wal.stop()
        for connection in self._all:
            # Where the log cannot be moved into the file it stays, and whoever opens it next does that.
            with suppress(apsw.Error):
                connection.close()
        self._all.clear()
