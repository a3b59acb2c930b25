"""Who on this machine is dead, known at once.

Every owner holds a lock on one byte of a file beside the store, and the kernel lets go of it when
the process ends in whatever way. So a kill -9 is seen without waiting for a lease to run out.

POSIX record locks belong to a process, and closing *any* descriptor of the file drops them all:
hence one descriptor per process and file that is never closed. A process cannot see its own locks
either, hence the table of what this process holds. A forked child inherits neither: it gets its
own descriptor and an empty table.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

from holdfast.errors import StoreUnavailableError
from holdfast.store.readonly import why_unwritable

_PATIENCE, _PAUSE = 0.2, 0.001  # seconds for those who look at a byte to let go of it, which takes them microseconds

_guard = threading.Lock()
_files: dict[tuple[int, int], _LockFile] = {}  # by device and inode


def _forget() -> None:
    """Begin anew in a forked child: it holds none of its parent's locks, and the guard may be taken."""
    global _guard
    _guard = threading.Lock()
    _files.clear()


os.register_at_fork(after_in_child=_forget)


class _LockFile:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.held: set[int] = set()


def _lock_file(path: Path) -> _LockFile:
    try:
        stat = os.stat(path, follow_symlinks=False)
        known = _files.get((stat.st_dev, stat.st_ino))
    except FileNotFoundError:
        known = None
    if known is None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        stat = os.fstat(descriptor)
        known = _files.setdefault((stat.st_dev, stat.st_ino), _LockFile(descriptor))
    return known


class LocalOwners:
    """The owners that hold a byte of `path`. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: tuple[int, _LockFile] | None = None

    def _file(self) -> _LockFile:
        if self._opened is None or self._opened[0] != os.getpid():
            try:
                self._opened = (os.getpid(), _lock_file(self._path))
            except OSError as error:
                raise StoreUnavailableError(
                    why_unwritable(self._path, self._path.parent)
                    or f"{self._path}: {error.strerror or error}. Mend the cause and go on."
                ) from error
        return self._opened[1]

    def hold(self, owner: str) -> None:
        """Keep `owner` known as alive until this process ends or drops it. Holding twice equals once.

        Raises StoreUnavailableError when another process has it.
        """
        deadline = time.monotonic() + _PATIENCE
        while not self._try_hold(owner):
            if time.monotonic() > deadline:
                raise StoreUnavailableError(f"another process holds owner {owner} in {self._path}. Try again.")
            time.sleep(_PAUSE)

    def _try_hold(self, owner: str) -> bool:
        with _guard:
            file, byte = self._file(), int(owner, 16)
            if byte not in file.held:
                try:
                    fcntl.lockf(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                except (BlockingIOError, PermissionError):  # which of the two it is, POSIX leaves open
                    return False  # somebody looks at this very moment whether it is dead
                file.held.add(byte)
            return True

    def drop(self, owner: str) -> None:
        """Let others see `owner` as dead."""
        with _guard:
            file, byte = self._file(), int(owner, 16)
            if byte in file.held:
                fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 1, byte)
                file.held.discard(byte)

    def dead(self, owner: str) -> bool:
        """Whether no process holds `owner` any more."""
        with _guard:
            file, byte = self._file(), int(owner, 16)
            if byte in file.held:
                return False
            try:
                # A shared lock tells without disturbing others who look at the same moment.
                fcntl.lockf(file.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, byte)
            except OSError:
                return False
            fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 1, byte)
            return True
