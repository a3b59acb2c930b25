"""A VFS for SQLite that writes down what reaches which file when, and what a power cut would leave of it.

The disk that is imagined here keeps what was flushed and nothing else for sure. Of what was written
since, each write by itself may have arrived, or not, or in part: any of its sectors of 512 bytes. Names in
the folder (a file made, a file deleted) are sure after the folder was flushed, which SQLite does with
the first flush of a journal or log that it has made.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

SECTOR = 512
_numbers = itertools.count()


class Op(NamedTuple):
    """One line of a trace."""

    what: str
    file: str = ""
    offset: int = 0
    """Where a write goes; the new size for a truncate; how far the trace was when a sync began."""
    data: bytes = b""
    note: Any = None
    """What was acknowledged."""


class Trace(list[Op]):
    """What happened to the files of one database, and what was acknowledged in between."""

    def __init__(self) -> None:
        super().__init__()
        self._made: set[str] = set()
        self.lock = threading.Lock()

    def made(self, file: str) -> None:
        """A file is new: its name is not sure yet."""
        self._made.add(file)
        self.append(Op("made", file))

    def synced(self, file: str, begun_at: int) -> None:
        """A flush has ended. It counts for what was written before it began."""
        self.append(Op("sync", file, begun_at))
        if file in self._made:
            self._made.discard(file)
            self.append(Op("sync_names"))


class TracingVFS(apsw.VFS):
    """SQLite's own VFS, watched. Its name is in `name`; unregister it when done."""

    def __init__(self) -> None:
        self.name, self.trace = f"tracing-{next(_numbers)}", Trace()
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> TracingFile:
        """The open file."""
        path = name if isinstance(name, str) or name is None else name.filename()
        return TracingFile(self.trace, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """A file goes; its name only for sure when the folder is flushed as well."""
        super().xDelete(filename, syncdir)
        self.trace.append(Op("deleted", os.path.basename(filename)))
        if syncdir:
            self.trace.append(Op("sync_names"))


class TracingFile(apsw.VFSFile):
    """One open file. A file that SQLite opens for a moment in memory has no name and is not watched."""

    def __init__(self, trace: Trace, path: str | None, name: Any, flags: list[int]) -> None:
        self._trace, self._file = trace, os.path.basename(path or "")
        is_new = bool(path) and not os.path.exists(path or "")
        super().__init__("", name, flags)
        if is_new:
            trace.made(self._file)

    def xWrite(self, data: bytes, offset: int) -> None:
        """Written, but for how long nobody knows."""
        self._trace.append(Op("write", self._file, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        """Cut short, as unsure as a write."""
        self._trace.append(Op("truncate", self._file, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        """On the disk from now on."""
        begun_at = len(self._trace)
        super().xSync(flags)
        self._trace.synced(self._file, begun_at)


class DatabaseDisk:
    """What the disk holds for sure as a trace is played, and what is still on its way."""

    def __init__(self) -> None:
        self._sure: dict[str, bytearray] = {}
        self._unsure: dict[str, list[tuple[int, Op]]] = {}
        self._names: list[Op] = []
        """Deletions that the folder was not flushed after."""

    def play(self, at: int, op: Op) -> None:
        """Take in the op at that place of the trace."""
        if op.what in ("write", "truncate"):
            self._unsure.setdefault(op.file, []).append((at, op))
            self._sure.setdefault(op.file, bytearray())
        elif op.what == "sync":
            waiting = self._unsure.get(op.file, [])
            for when, one in waiting:
                if when < op.offset:
                    apply(self._sure[op.file], one)
            self._unsure[op.file] = [pair for pair in waiting if pair[0] >= op.offset]
        elif op.what == "deleted":
            self._names.append(op)
        elif op.what == "made":
            self._forget(op.file)
            self._names = [name for name in self._names if name.file != op.file]
        elif op.what == "sync_names":
            for name in self._names:
                self._forget(name.file)
            self._names = []

    def _forget(self, file: str) -> None:
        self._sure.pop(file, None)
        self._unsure.pop(file, None)

    def write_image(self, folder: Path, chance: random.Random) -> None:
        """The files as a power cut at this moment might leave them."""
        folder.mkdir()
        keep = chance.choice([0.0, 0.3, 0.5, 0.8, 1.0])
        gone = {op.file for op in self._names if chance.random() < 0.5}
        for file, sure in self._sure.items():
            if file not in gone:
                content = bytearray(sure)
                for _, op in self._unsure.get(file, []):
                    for part in survivors(op, chance, keep):
                        apply(content, part)
                (folder / file).write_bytes(content)


def survivors(op: Op, chance: random.Random, keep: float) -> Sequence[Op]:
    """What of an unsure op arrives: all of it, nothing, or some sectors."""
    if chance.random() < keep:
        return [op]
    if op.what == "truncate" or chance.random() < 0.5:
        return []
    parts, at, end = [], op.offset, op.offset + len(op.data)
    while at < end:
        upto = min((at // SECTOR + 1) * SECTOR, end)
        if chance.random() < 0.5:
            parts.append(Op("write", op.file, at, op.data[at - op.offset : upto - op.offset]))
        at = upto
    return parts


def apply(content: bytearray, op: Op) -> None:
    """Do to the bytes what the op does to its file."""
    if op.what == "truncate":
        del content[op.offset :]
        content.extend(bytes(op.offset - len(content)))
    else:
        content.extend(bytes(max(op.offset - len(content), 0)))
        content[op.offset : op.offset + len(op.data)] = op.data
