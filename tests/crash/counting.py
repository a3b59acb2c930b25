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


def count_commits(tell: Callable[[], None] = lambda: None) -> Callable[[], int]:
    """Begin to count; gives what tells the count. `tell` is called at each, for whoever may not live to tell it."""
    counted = [0]

    lock = threading.Lock()

    def count(by: int = 1) -> None:
        with lock:  # runs commit in threads of their own
            counted[0] += by
        for _ in range(by):
            tell()

    _count_in_sqlite(count)
    _count_in_files(count)
    return lambda: counted[0]


def _count_in_sqlite(count: Callable[[], None]) -> None:
    def on_commit() -> bool:
        count()
        return False

    apsw.connection_hooks.append(lambda connection: connection.set_commit_hook(on_commit, id="counting"))


def _count_in_files(count: Callable[[int], None]) -> None:
    """A file that is flushed is a commit, and so is one that is put in its place without a flush."""
    flushed: set[int] = set()
    fsync, rename = os.fsync, os.rename

    def counting_fsync(file: int) -> None:
        fsync(file)
        found = os.fstat(file)
        count(stat.S_ISREG(found.st_mode))
        flushed.add(found.st_ino)

    def counting_rename(old: Any, new: Any, **folders: Any) -> None:
        inode = os.stat(old, dir_fd=folders.get("src_dir_fd"), follow_symlinks=False).st_ino
        rename(old, new, **folders)
        if inode not in flushed:
            count(1)
        flushed.discard(inode)

    os.fsync, os.rename = counting_fsync, counting_rename  # type: ignore[assignment]


def die_at(phase: str, number: int) -> None:
    """Kill this process `before` or `after` its n-th commit, from 1.

    Calls have phases of their own: `begins`, `inside` (its effect is out in the world) and `done`.
    """
    lock, passed = threading.Lock(), [0]

    def hook(point: str) -> None:
        if point.endswith(f".{phase}"):
            with lock:
                passed[0] += 1
                if passed[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)

    faults.install(hook)
