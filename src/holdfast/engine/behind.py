"""What is known of code that goes on though it was cancelled: of which step of which run it is."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

_whose: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()


def goes_on(task: asyncio.Task[Any], step: str, run: str) -> None:
    """The task was cancelled, and its run goes its way without it."""
    _whose[task] = f"step {step!r} of run {run}"


def whose(task: asyncio.Task[Any]) -> str | None:
    """What it is part of, if it was left behind."""
    return _whose.get(task)
