"""What a run has done since its last commit, and how an entry tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.history import Segment
from holdfast.model import Entry, HeadChange, Kind

StepTaken = tuple[str, float, float]
"""A step by its name, and when it began and ended."""
Mark = tuple[Kind, dict[str, Any]]
"""Something that happened, as an entry of that kind tells it."""
_AT_ONCE = 0.001
_CHECKPOINT = Kind.CHECKPOINT  # slow to find in its enum


class Progress(msgspec.Struct, gc=False):
    """Where a run has come to since its last checkpoint."""

    tree: Any
    cursor: dict[str, Any]
    steps: Sequence[StepTaken]
    change: Sequence[Any] | None = None
    """What of the tree has changed since the last checkpoint, where it is known."""


class Landed(msgspec.Struct, gc=False):
    """All that a commit changes in the store, kept until it is known whether it did."""

    entries: tuple[Entry, ...]
    change: HeadChange | None
    progress: Progress | None
    segment: Segment


def told(steps: Sequence[StepTaken], now: float) -> Sequence[Any]:
    """The steps as an entry of now tells them: when it was made is when the last one ended, nearly always."""
    if not steps or not -_AT_ONCE <= now - steps[-1][2] <= _AT_ONCE:
        return steps
    return [*steps[:-1], steps[-1][:2]] if len(steps) > 1 else [steps[0][:2]]


def last_checkpoint(entries: Sequence[Entry]) -> Entry:
    """The last of these entries that is a checkpoint, or the only one."""
    if len(entries) == 1:
        return entries[0]
    return next(entry for entry in reversed(entries) if entry.kind == _CHECKPOINT)
