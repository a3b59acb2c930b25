"""Counts the commits of this process from outside the stores' code, and makes it die at one of them.

The count comes from SQLite and from the operating system, the deaths come from the stores' fault
points: when the two disagree, a durable write has no fault point (or a fault point no write).
"""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable
from typing import Any

import apsw

from holdfast import faults


def count_commits() -> Callable[[], int]:
    """Begin to count; gives what tells the count."""
    counted = [0]
    _count_in_sqlite(counted)
    _count_in_files(counted)
    return lambda: counted[0]


def _count_in_sqlite(counted: list[int]) -> None:
    def on_commit() -> bool:
        counted[0] += 1
        return False

    apsw.connection_hooks.append(lambda connection: connection.set_commit_hook(on_commit, id="counting"))


def _count_in_files(counted: list[int]) -> None:
    """A file that is flushed is a commit, and so is one that is put in its place without a flush."""
    flushed: set[int] = set()
    fsync, rename = os.fsync, os.rename

    def counting_fsync(file: int) -> None:
        fsync(file)
        found = os.fstat(file)
        counted[0] += stat.S_ISREG(found.st_mode)
        flushed.add(found.st_ino)

    def counting_rename(old: Any, new: Any, **folders: Any) -> None:
        inode = os.stat(old, dir_fd=folders.get("src_dir_fd"), follow_symlinks=False).st_ino
        rename(old, new, **folders)
        if inode not in flushed:
            counted[0] += 1
        flushed.discard(inode)

    os.fsync, os.rename = counting_fsync, counting_rename  # type: ignore[assignment]


def die_at(phase: str, number: int) -> None:
    """Kill this process `before` or `after` its n-th commit, from 1."""
    lock, passed = threading.Lock(), [0]

    def hook(point: str) -> None:
        if point.endswith(f".{phase}"):
            with lock:
                passed[0] += 1
                if passed[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)

    faults.install(hook)
