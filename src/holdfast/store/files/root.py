"""The root folder of a store: its version, who is in it, and what a crash left behind."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.errors import StoreDamagedError, StoreVersionError
from holdfast.store.files.disk import Disk, NotPlainError, lock, open_file, remove_folder, run_of

VERSION = 1
VERSION_FILE, CHANGED_FILE = ".holdfast.json", ".changed"
_ABANDONED_AFTER = 3600.0  # seconds after which a run that is still being made never will be


class _Version(msgspec.Struct):
    version: int


def open_root(path: Path, disk: Disk) -> int:
    """The open root folder, made if it is not there.

    Raises StoreVersionError, with everything unchanged, when a newer Holdfast wrote it.
    """
    _make(path, disk)
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with flocked(root):  # two who open a new store at once write the same file
            if not _has_version(root):
                # Durable whatever the runs are: if a power cut could tear it, it would take the whole store with it.
                data = msgspec.json.encode(_Version(VERSION)) + b"\n"
                Disk(durable=True).replace(root, VERSION_FILE, data, "open")
            os.close(open_file(root, CHANGED_FILE, os.O_WRONLY | os.O_CREAT))
    except NotPlainError as error:
        os.close(root)
        raise StoreDamagedError(None, None, str(error)) from None
    except BaseException:
        os.close(root)
        raise
    return root


@contextmanager
def flocked(root: int) -> Iterator[None]:
    """Nobody else, of this or another process, is in such a block of the same store."""
    lock(root, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(root, fcntl.LOCK_UN)


def _make(path: Path, disk: Disk) -> None:
    """Make the folder and those above it, and have their names on the disk too."""
    if path.is_dir():
        return
    _make(path.parent, disk)
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        disk.sync(above)
    finally:
        os.close(above)


def _has_version(root: int) -> bool:
    try:
        with os.fdopen(open_file(root, VERSION_FILE), "rb") as file:
            found = msgspec.json.decode(file.read(), type=_Version).version
    except FileNotFoundError:
        return False
    except msgspec.MsgspecError as error:
        raise StoreDamagedError(None, None, f"{VERSION_FILE} does not say its version") from error
    if found > VERSION:
        raise StoreVersionError(found, VERSION)
    return True


def clean_up(root: int) -> None:
    """Remove what processes left that died while they made or deleted a run."""
    for name in os.listdir(root):
        with suppress(OSError):
            if name.startswith(".gone-") or (name.startswith(".new-") and _is_abandoned(root, name)):
                remove_folder(root, name)


def _is_abandoned(root: int, name: str) -> bool:
    return os.stat(name, dir_fd=root, follow_symlinks=False).st_mtime + _ABANDONED_AFTER < time.time()


def list_runs(root: int) -> list[str]:
    """The runs that have a folder, damaged ones included."""
    return [run for name in os.listdir(root) if (run := run_of(name)) is not None]


def list_strangers(root: int) -> list[str]:
    """The names in the root that are not ours."""
    return sorted(name for name in os.listdir(root) if not name.startswith(".") and run_of(name) is None)


def note_change(root: int) -> None:
    """Wake those who wait in other processes, which look at the time of a file."""
    now = time.time_ns()
    with suppress(OSError):  # what changed is written already; who is not woken looks by itself after a while
        os.utime(CHANGED_FILE, ns=(now, now), dir_fd=root, follow_symlinks=False)


def last_change(root: int) -> int:
    """A number that is another one after each change; never 0."""
    try:
        return os.stat(CHANGED_FILE, dir_fd=root, follow_symlinks=False).st_mtime_ns or 1
    except FileNotFoundError:
        return 1
