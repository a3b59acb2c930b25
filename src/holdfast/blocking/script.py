"""A run in one blocking call, for scripts: with signals that hand it back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, Unpack

import holdfast.runtime as face
from holdfast.blocking.loops import run_on_own_loop
from holdfast.blocking.signals import told_to_the_loop
from holdfast.engine.verbs import MISSING
from holdfast.errors import UsageError
from holdfast.flows.base import Flow
from holdfast.store.base import Store

log = logging.getLogger("holdfast")

R = TypeVar("R")


def run(
    flow: Flow[R],
    input: Any = MISSING,
    *,
    id: str | None = None,
    store: str | os.PathLike[str] | Store | None = MISSING,
    metadata: dict[str, Any] | None = None,
    **settings: Unpack[face.Settings],
) -> R:
    """The result of a run in one blocking call, for scripts: started, continued, or read.

    The first Ctrl-C or SIGTERM gives the step under way `grace` seconds to finish and hands the run back,
    the second one at once; both raise RunInterruptedError, and the same call goes on later. A run that
    waits for something from outside raises RunWaitingError instead of keeping the script waiting.
    """
    if _on_a_loop():
        raise UsageError(
            "holdfast.run blocks, and an event loop is running here (as in a notebook). Use `await rt.run(...)` inside "
            "`async with Runtime(...) as rt`, or holdfast.blocking.Runtime."
        )
    runtime = face.Runtime(store, **settings)
    return run_on_own_loop(_run_with_signals(runtime, flow, input, id, metadata), runtime)


def _on_a_loop() -> bool:
    # A function of its own: whatever ran in the `except` would have this error as the context of all of its own.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _run_with_signals(
    runtime: face.Runtime, flow: Flow[R], input: Any, id: str | None, metadata: dict[str, Any] | None
) -> R:
    async with runtime, handing_back_on_signals(runtime, _say_what_happens):
        return await runtime.run(flow, input, id=id, metadata=metadata, until="settled")


def _say_what_happens(number: signal.Signals) -> None:
    log.warning("holdfast: %s: the step under way may finish; once more hands the run back at once", number.name)


@asynccontextmanager
async def handing_back_on_signals(
    runtime: face.Runtime, on_signal: Callable[[signal.Signals], None] | None = None
) -> AsyncIterator[Callable[[], None]]:
    """While inside, SIGINT and SIGTERM close the runtime: after the step under way, the second time at once.

    `on_signal` is told each one before anything is closed. What it gives does what the first one does.
    """
    loop, closing, unasked = asyncio.get_running_loop(), set[asyncio.Task[None]](), False

    def close() -> None:
        runtime._stop_soon()  # before anybody is told: closing takes turns of the loop, in which a step could begin
        closing.add(loop.create_task(runtime.close()))

    def hand_back() -> None:
        nonlocal unasked
        if not closing:
            unasked = True
            close()

    def signalled(number: signal.Signals) -> None:
        nonlocal unasked
        if unasked:
            unasked = False  # it is the first one all the same: nobody is in a hurry yet
        else:
            close()
        if on_signal is not None:
            on_signal(number)  # last: whatever it raises, the runtime closes

    with told_to_the_loop(signalled):
        try:
            yield hand_back
        finally:
            if closing:
                await asyncio.wait(closing)
