"""A disk that fails on demand, under each store: full, read-only, or unable to write or to flush."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import apsw

from holdfast.store.base import Store
from holdfast.store.files import FilesStore
from holdfast.store.sqlite import SqliteStore

FAULTS = ("full", "read-only", "write error", "flush error")
_numbers = itertools.count()

_SQLITE: dict[str, type[apsw.Error]] = {
    "full": apsw.FullError,
    "read-only": apsw.ReadOnlyError,
    "write error": apsw.IOError,
    "flush error": apsw.IOError,
}
_FILES = {"full": errno.ENOSPC, "read-only": errno.EROFS, "write error": errno.EIO, "flush error": errno.EIO}


class BrokenDisk:
    """Works until `fault` names one of FAULTS, and again once it is None."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.failures = 0

    def meets(self, operation: str) -> bool:
        """Whether a `write` or `flush` fails now."""
        if self.fault is None or (self.fault == "flush error") != (operation == "flush"):
            return False
        self.failures += 1
        return True


@contextmanager
def store_on(kind: str, disk: BrokenDisk, folder: Path) -> Iterator[Callable[[], Store]]:
    """Makes stores of that kind on the disk."""
    if kind == "sqlite":
        vfs = _BrokenVFS(disk)
        yield lambda: SqliteStore(folder / "runs.db", vfs=vfs.name)
        vfs.unregister()
    else:
        with _broken_calls(disk):
            yield lambda: FilesStore(folder / "runs")


class _BrokenVFS(apsw.VFS):
    def __init__(self, disk: BrokenDisk) -> None:
        self.name, self._disk = f"broken-{next(_numbers)}", disk
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> _BrokenFile:
        return _BrokenFile(self._disk, name, flags)


class _BrokenFile(apsw.VFSFile):
    def __init__(self, disk: BrokenDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("", name, flags)

    def _meet(self, operation: str) -> None:
        if self._disk.fault is not None and self._disk.meets(operation):
            raise _SQLITE[self._disk.fault](f"the disk has a {self._disk.fault}")

    def xWrite(self, data: bytes, offset: int) -> None:
        self._meet("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._meet("flush")
        super().xSync(flags)


@contextmanager
def _broken_calls(disk: BrokenDisk) -> Iterator[None]:
    def broken(name: str, operation: str) -> Any:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if disk.fault is not None and disk.meets(operation):
                raise OSError(_FILES[disk.fault], os.strerror(_FILES[disk.fault]))
            return real(*arguments, **options)

        return mock.patch.object(os, name, call)

    with broken("write", "write"), broken("pwrite", "write"), broken("fsync", "flush"):
        yield
