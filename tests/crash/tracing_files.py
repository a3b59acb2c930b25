"""The same for plain files: the system calls of this process are watched, below one folder.

What a power cut leaves: of a file, what was flushed, and of later writes any sectors; of a folder, the
names as of its last flush, and of later changes either the first few (as a journal would keep them) or
any of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from .tracing import Op, Trace, apply, survivors

CALLS = ("open", "close", "pwrite", "ftruncate", "fsync", "rename", "unlink", "rmdir", "mkdir")


class Names(NamedTuple):
    """A change of the names in a folder: `old` is gone, and `new` is `node`."""

    old: str | None
    new: str | None
    node: str


class Watch:
    """What this process does below a folder. Files and folders are nodes: they keep their name in the trace
    whatever they are called."""

    def __init__(self, top: Path) -> None:
        self.trace = Trace()
        self._top = str(top)
        self._nodes: dict[tuple[str, str], str] = {}
        self._open: dict[int, str] = {}
        self._real = {name: getattr(os, name) for name in CALLS}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch for as long as this lasts."""
        patches = [mock.patch.object(os, name, getattr(self, f"_{name}_call")) for name in CALLS]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()

    def _place(self, path: Any, folder: int | None) -> tuple[str, str] | None:
        """The folder's node and the name in it; None for what lies elsewhere."""
        if folder is not None:
            node = self._open.get(folder)
            return None if node is None else (node, str(path))
        parts = os.path.relpath(path, self._top).split("/")
        if parts[0] == "..":
            return None
        node = "top"
        for part in parts[:-1]:
            node = self._nodes.get((node, part), "")
        return (node, parts[-1]) if parts != ["."] else ("", "top")

    def _change(self, place: tuple[str, str], old: str | None, new: str | None, node: str) -> None:
        if old is not None:
            self._nodes.pop((place[0], old), None)
        if new is not None:
            self._nodes[place[0], new] = node
        self.trace.append(Op("names", place[0], note=Names(old, new, node)))

    def _open_call(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        file: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        self._open.pop(file, None)
        place = self._place(path, dir_fd)
        if place is not None:
            if place not in self._nodes and place[1] != "top" and flags & os.O_CREAT:
                self._change(place, None, place[1], f"file-{len(self.trace)}")
            self._open[file] = "top" if place == ("", "top") else self._nodes.get(place, "")
        return file

    def _close_call(self, file: int) -> None:
        self._open.pop(file, None)
        self._real["close"](file)

    def _pwrite_call(self, file: int, data: Any, offset: int) -> int:
        written: int = self._real["pwrite"](file, data, offset)
        if node := self._open.get(file):
            self.trace.append(Op("write", node, offset, bytes(data[:written])))
        return written

    def _ftruncate_call(self, file: int, size: int) -> None:
        self._real["ftruncate"](file, size)
        if node := self._open.get(file):
            self.trace.append(Op("truncate", node, size))

    def _fsync_call(self, file: int) -> None:
        # The disk that counts here is the imagined one.
        if node := self._open.get(file):
            self.trace.append(Op("sync", node, len(self.trace)))

    def _rename_call(self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self._real["rename"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        before, after = self._place(old, src_dir_fd), self._place(new, dst_dir_fd)
        if before is not None and after is not None:
            assert before[0] == after[0], "a rename from folder to folder is not imagined here"
            self._change(after, before[1], after[1], self._nodes[before])

    def _gone(self, call: str, path: Any, folder: int | None) -> None:
        self._real[call](path, dir_fd=folder)
        place = self._place(path, folder)
        if place is not None:
            self._change(place, place[1], None, "")

    def _unlink_call(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._gone("unlink", path, dir_fd)

    def _rmdir_call(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._gone("rmdir", path, dir_fd)

    def _mkdir_call(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        place = self._place(path, dir_fd)
        if place is not None:
            self._change(place, None, place[1], f"folder-{len(self.trace)}")


class FolderDisk:
    """What the disk holds for sure as such a trace is played, and what is still on its way."""

    def __init__(self) -> None:
        self._content: dict[str, bytearray] = {}
        self._names: dict[str, dict[str, str]] = {}
        self._unsure: dict[str, list[tuple[int, Op]]] = {}

    def play(self, at: int, op: Op) -> None:
        """Take in the op at that place of the trace."""
        if op.what in ("write", "truncate", "names"):
            self._unsure.setdefault(op.file, []).append((at, op))
        elif op.what == "sync":
            waiting = self._unsure.pop(op.file, [])
            for when, one in waiting:
                if when >= op.offset:
                    self._unsure.setdefault(op.file, []).append((when, one))
                elif one.what == "names":
                    rename(self._names.setdefault(op.file, {}), one.note)
                else:
                    apply(self._content.setdefault(op.file, bytearray()), one)

    def write_image(self, folder: Path, chance: random.Random) -> None:
        """The files as a power cut at this moment might leave them."""
        keep = chance.choice([0.0, 0.3, 0.5, 0.8, 1.0])
        self._write_folder("top", folder, chance, keep)

    def _write_folder(self, node: str, folder: Path, chance: random.Random, keep: float) -> None:
        folder.mkdir()
        names = dict(self._names.get(node, {}))
        changes = [op.note for _, op in self._unsure.get(node, [])]
        for change in _arrived(changes, chance, keep):
            rename(names, change)
        for name, inner in names.items():
            if inner.startswith("folder-"):
                self._write_folder(inner, folder / name, chance, keep)
            else:
                content = bytearray(self._content.get(inner, b""))
                for _, op in self._unsure.get(inner, []):
                    for part in survivors(op, chance, keep):
                        apply(content, part)
                (folder / name).write_bytes(content)


def _arrived(changes: list[Names], chance: random.Random, keep: float) -> list[Names]:
    if chance.random() < 0.5:
        return changes[: chance.randint(0, len(changes))]
    return [change for change in changes if chance.random() < keep]


def rename(names: dict[str, str], change: Names) -> None:
    """Do to the names of a folder what the change says, as far as there is something to do it to."""
    if change.old is not None and names.pop(change.old, None) is None:
        return
    if change.new is not None:
        names[change.new] = change.node
