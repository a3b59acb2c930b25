"""The files of a run as they stood at one moment, which can be read without keeping others from writing."""

from __future__ import annotations

import os
from types import TracebackType
from typing import BinaryIO, Self

from holdfast.store.files.disk import Stamp, open_file, stamp

LOG, INBOX = "log.jsonl", "inbox.jsonl"


class View:
    """The files in an open and locked folder. Those that are kept can be read when the lock is gone.

    A file grows at its end, or another one takes its place: so what was in it stays where it was for those who have
    it open. Only a torn tail may be cut off and written over while they read.
    """

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self._kept: dict[str, int] = {}
        self.stamps: dict[str, Stamp | None] = {name: stamp(folder, name) for name in (LOG, INBOX)}

    @property
    def is_kept(self) -> bool:
        """Whether others may write meanwhile."""
        return bool(self._kept)

    def keep(self) -> None:
        """Open the files, while the lock is still there, so that they can be read without it."""
        for name, found in self.stamps.items():
            if found is not None:
                self._kept[name] = open_file(self._folder, name)

    def open(self, name: str) -> BinaryIO:
        """A file, to be read up to the size in its stamp. Raises NotPlainError."""
        return os.fdopen(os.dup(self._kept[name]) if self._kept else open_file(self._folder, name), "rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._kept.values():
            os.close(file)
        self._kept.clear()
