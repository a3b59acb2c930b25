"""The durable stores under torture: where they live in a folder, and how to open a copy of one."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.store.base import Store
from holdfast.store.locate import locate

KINDS = ("sqlite", "file")


def url(kind: str, folder: Path) -> str:
    """The URL of the store of that kind in a folder."""
    return f"sqlite:{folder / 'runs.db'}" if kind == "sqlite" else f"file:{folder / 'runs'}"


def copied(kind: str, folder: Path, to: Path) -> Store:
    """The store as it lies on the disk, in a copy: looking at it cannot mend it.

    SQLite's shared memory stays behind, as after a power cut, so that the copy has to be recovered from
    its log alone.
    """
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*-shm"), symlinks=True)
    return locate(url(kind, to))
