"""The few things done to the file system, each so that a crash or a hostile file does no harm.

Everything is reached through an open folder and never through a symbolic link, so nothing outside the
store is ever touched. Locks are taken on folders: a folder keeps its lock while its files are replaced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from holdfast.core.ids import check_id
from holdfast.errors import InvalidIdError, StoreUnavailableError
from holdfast.faults import fault
from holdfast.store.readonly import why_unwritable

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO in place of a file must not make us wait
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

PATIENCE = 10.0  # seconds to wait for a lock, which is held for one write
MOMENT = 0.05  # seconds, where one can do without it

Stamp = tuple[int, int, int]
"""Inode, size and time of change: if they are the same, so is the file."""


class NotPlainError(Exception):
    """Something else stands where a plain file or folder of ours should be."""


class LockTakenError(TimeoutError):
    """Another process does not let go of a lock."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "another process does not let go of a lock")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what the operating system says into a StoreUnavailableError."""
    try:
        yield
    except BlockingIOError:  # not trouble: a lock that somebody else has, and the caller does not wait
        raise
    except OSError as error:
        raise StoreUnavailableError(
            why_unwritable(path)
            or f"the store at {path} could not be read or written ({error.strerror or error}). "
            f"Nothing unacknowledged counts as done; mend the cause and go on."
        ) from error


def folder_name(run: str) -> str:
    """The folder of a run. Ids that differ in case only get different folders on every file system."""
    check_id(run)
    return run if run == run.lower() else f"{run}~{blake2b(run.encode(), digest_size=4).hexdigest()}"


def run_of(name: str) -> str | None:
    """The run whose folder has this name; None when it is none of ours."""
    run = name.partition("~")[0]
    try:
        return run if folder_name(run) == name else None
    except InvalidIdError:
        return None


@contextmanager
def locked_folder(root: int, name: str, *, exclusive: bool, patience: float | None = None) -> Iterator[int | None]:
    """The open, locked folder `name`; None when there is none.

    Raises what `lock` does, and NotPlainError when it is no folder.
    """
    mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    while (folder := open_folder(root, name)) is not None:
        try:
            lock(folder, mode, patience)
            # It may have been deleted, and even made again, while we waited for the lock.
            if _is_still(root, name, folder):
                yield folder
                return
        finally:
            # Said out loud: a child that was forked meanwhile has a copy of the descriptor.
            fcntl.flock(folder, fcntl.LOCK_UN)
            os.close(folder)
    yield None


def lock(folder: int, mode: int, patience: float | None = None) -> None:
    """Take the lock of an open folder, with so many seconds of patience (PATIENCE if none are given).

    Raises LockTakenError when waiting was in vain, BlockingIOError without any patience.
    """
    patience = PATIENCE if patience is None else patience
    # Not a call that blocks: a process that is stopped while it writes would stop all others with it.
    deadline, pause = time.monotonic() + patience, 0.0005
    while True:
        try:
            return fcntl.flock(folder, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if patience == 0.0:
                raise
            if time.monotonic() > deadline:
                raise LockTakenError from None
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


def open_folder(root: int, name: str) -> int | None:
    """The open folder `name`; None when there is none. Raises NotPlainError."""
    try:
        return os.open(name, _FOLDER, dir_fd=root)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise NotPlainError("its folder is not a folder") from error
        raise


def _is_still(root: int, name: str, folder: int) -> bool:
    try:
        return os.path.samestat(os.stat(name, dir_fd=root, follow_symlinks=False), os.fstat(folder))
    except FileNotFoundError:
        return False


def stamp(folder: int, name: str) -> Stamp | None:
    """The stamp of a file; None when there is none. Raises NotPlainError."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise NotPlainError(f"{name} is not a plain file")
    return found.st_ino, found.st_size, found.st_mtime_ns


def open_file(folder: int, name: str, flags: int = os.O_RDONLY) -> int:
    """An open plain file. Raises NotPlainError."""
    try:
        file = os.open(name, flags | _SAFE, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise NotPlainError(f"{name} is not a plain file") from error
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotPlainError(f"{name} is not a plain file")
    return file


class Disk:
    """Writes that survive what `durable` promises: power loss, or only the end of the process."""

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable

    def sync(self, file: int) -> None:
        """Have a file, or the names in a folder, on the disk itself."""
        if not self._durable:
            return
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves it in the drive's cache
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
        else:
            os.fsync(file)

    def append(self, folder: int, name: str, data: bytes, at: int, point: str) -> Stamp:
        """Write at offset `at`, where the good part of a file ends, and cut off whatever stood after it.

        When it fails, what it wrote is cut off again as far as the disk allows it.
        """
        fault(f"{point}.before")
        file = open_file(folder, name, os.O_WRONLY | os.O_CREAT)
        try:
            if os.fstat(file).st_size != at:
                os.ftruncate(file, at)
            _write(file, data, at)
            fault(f"{point}.written")
            self.sync(file)
            found = os.fstat(file)
        except BaseException:
            # After a failed sync the kernel may drop what it could not write and still say that all is
            # well on this handle. So the next word comes from a fresh one.
            os.close(file)
            with suppress(OSError, NotPlainError):
                self._cut(folder, name, at)
            raise
        os.close(file)
        if at == 0:
            self.sync(folder)
        fault(f"{point}.after")
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _cut(self, folder: int, name: str, at: int) -> None:
        file = open_file(folder, name, os.O_WRONLY)
        try:
            os.ftruncate(file, at)
            self.sync(file)
        finally:
            os.close(file)

    def replace(self, folder: int, name: str, data: bytes, point: str) -> Stamp:
        """Put a whole new file in the place of the old one, which stays untouched until that is done."""
        fault(f"{point}.before")
        temporary = f"{name}.tmp"
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)  # of a process that died here, or planted
        file = open_file(folder, temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            try:
                _write(file, data, 0)
                fault(f"{point}.written")
                self.sync(file)
                found = os.fstat(file)
            finally:
                os.close(file)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        self.sync(folder)
        fault(f"{point}.after")
        return found.st_ino, found.st_size, found.st_mtime_ns

    def create_folder(self, root: int, name: str, file: str, data: bytes, point: str) -> bool:
        """Make a folder with one file in it, there wholly or not at all. False when the name is taken."""
        fault(f"{point}.before")
        temporary = f".new-{secrets.token_hex(8)}"
        os.mkdir(temporary, 0o700, dir_fd=root)
        try:
            folder = os.open(temporary, _FOLDER, dir_fd=root)
            try:
                new = open_file(folder, file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                try:
                    _write(new, data, 0)
                    fault(f"{point}.written")
                    self.sync(new)
                finally:
                    os.close(new)
                self.sync(folder)
            finally:
                os.close(folder)
            os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)
        except OSError as error:
            with suppress(OSError):
                remove_folder(root, temporary)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                return False
            raise
        self.sync(root)
        fault(f"{point}.after")
        return True

    def delete_folder(self, root: int, name: str) -> None:
        """Remove a folder with all that is in it: gone at once for everybody, then freed."""
        fault("delete.before")
        hidden = f".gone-{secrets.token_hex(8)}"
        os.rename(name, hidden, src_dir_fd=root, dst_dir_fd=root)
        self.sync(root)
        fault("delete.after")
        with suppress(OSError):  # it counts as deleted; what is left is removed when the store is opened next
            remove_folder(root, hidden)


def remove_folder(root: int, name: str) -> None:
    """Remove a folder of plain files."""
    folder = os.open(name, _FOLDER, dir_fd=root)
    try:
        for one in os.listdir(folder):
            os.unlink(one, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)


def _write(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, at)
        view, at = view[count:], at + count
