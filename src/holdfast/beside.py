"""Which tasks were there at the same time: told by what the event loop knows when one of them ends."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any
from weakref import WeakSet

_last_look: tuple[asyncio.AbstractEventLoop, WeakSet[Any]] | None = None


def tasks_beside(ended: asyncio.Task[Any]) -> WeakSet[Any]:
    """The tasks that were there when this one ended, told by one of its callbacks.

    Whoever awaited it may have gone on already and started the next one. That has not begun to run: it stands
    in the loop's queue behind this callback. All tasks that end in one turn of the loop share a look around,
    as long as they had ended by then; what had not begun to run at that time counts as there for them.
    """
    global _last_look
    loop = ended.get_loop()
    if _last_look is not None and _last_look[0] is loop and ended not in _last_look[1]:
        return _last_look[1]
    there = asyncio.all_tasks(loop)
    _last_look = loop, WeakSet(there)
    loop.call_soon(_look_again)
    return WeakSet(task for task in there if _has_begun(task))


def _look_again() -> None:
    global _last_look
    _last_look = None


def _has_begun(task: asyncio.Task[Any]) -> bool:
    coro: Any = task.get_coro()
    try:
        return inspect.getcoroutinestate(coro) != inspect.CORO_CREATED
    except AttributeError:  # made by something else than Python
        return True
