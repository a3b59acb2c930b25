"""The end of an event loop that is our own: it does not wait for code that does not let itself be cancelled.

`asyncio.run` does so for ever. By then the run of such code is given up or has failed, and somebody else may go on
with it. A thread that does not end is left behind too, and keeps nobody from leaving.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

import holdfast.runtime as face
from holdfast.engine.behind import whose

log = logging.getLogger("holdfast")

T = TypeVar("T")
Tasks = Collection[asyncio.Task[Any]]

_A_MOMENT, _A_BLINK = 1.0, 0.05  # seconds
_SHOWN = 3


def run_on_own_loop(work: Coroutine[Any, Any, T], runtime: face.Runtime) -> T:
    """What `asyncio.run` does, for as long as the grace time of the runtime allows."""
    runner = asyncio.Runner()
    try:
        return runner.run(work)
    finally:
        _end(runner, runtime)


def _end(runner: asyncio.Runner, runtime: face.Runtime) -> None:
    loop = runner.get_loop()
    others = asyncio.all_tasks(loop)
    waiting = loop.create_task(cancel(others, runtime._time_left)) if others else None
    try:
        if waiting is not None:
            loop.run_until_complete(waiting)
    finally:
        left = asyncio.all_tasks(loop)
        if left - {waiting}:
            asyncio.set_event_loop(None)
            leave_behind(left, told=left & others)
            loop.close()
        else:
            runner.close()


async def cancel(tasks: Tasks, seconds: float = 0.0) -> None:
    """Cancel them; return when they have ended, or some refuse to and this time is over."""
    for task in tasks:
        task.cancel()
    # Where a run was handed back in the middle of its step, somebody else may be at that step from now on.
    at_least = _A_BLINK if any(map(whose, tasks)) else _A_MOMENT
    first = max(at_least, min(seconds, _A_MOMENT))
    _, left = await asyncio.wait(tasks, timeout=first)
    if left and seconds > first:
        log.warning(
            "holdfast: what was cancelled still goes on, %.0f s are left for it: %s", seconds - first, _names(left)
        )
        await asyncio.wait(left, timeout=seconds - first)


def leave_behind(left: Tasks, told: Tasks) -> None:
    """Let these tasks stand where they are, for ever, and say so of some: their loop is not run any more."""
    if told:
        log.warning("holdfast: left behind, because it would not be cancelled: %s", _names(told))
    # Letting go of a coroutine throws GeneratorExit into it. Code that takes no cancel does not take that either, and
    # would be at it for ever. What a thread holds that never ends is not let go when the interpreter ends either.
    threading.Thread(target=_hold, args=(left,), name="holdfast-left-behind", daemon=True).start()


def _names(tasks: Tasks) -> str:
    names = sorted({whose(task) or f"task {getattr(task.get_coro(), '__qualname__', '?')!r}" for task in tasks})
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _hold(left: Tasks) -> None:
    threading.Event().wait()
