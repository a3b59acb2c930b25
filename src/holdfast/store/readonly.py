"""What to say where a store can be seen but not written, as on a disk that is mounted for reading."""

from __future__ import annotations

import os
from pathlib import Path


def why_unwritable(*paths: Path) -> str | None:
    """What to do when one of these is there and cannot be written; None when that is not the trouble."""
    for path in paths:
        if os.path.lexists(path) and not os.access(path, os.W_OK):
            return (
                f"{path} is read-only here. A store is written to even when it is only read: for locks, and to know "
                f"who is alive. Copy the whole store (of SQLite the -wal file too) to where it can be written and name "
                f"the copy, or make it writable."
            )
    return None
