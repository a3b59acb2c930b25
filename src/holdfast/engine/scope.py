"""Where a step's function really runs: on the loop, in a thread of the run, or in an executor."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from holdfast.engine.threads import Lane, Lanes
from holdfast.errors import StepTimeoutError
from holdfast.flows.base import Step

T = TypeVar("T")


class StepRaised(Exception):
    """Carries what a step raised, whatever it was, so that no task or loop takes it for its own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class StepScope:
    """The Scope of one live run."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._lane: Lane | None = None
        self.interruptible = True
        """Whether the code under way can be cancelled at its await; a thread cannot."""

    async def perform(self, step: Step[..., Any], *args: Any) -> Any:
        """The result of the step's function."""
        if step.is_async:
            self.give_lane_back()
            return await _carried(step.fn(*args))
        self.interruptible = False
        try:
            result = await (self._in_lane(step, args) if step.executor is None else self._in_executor(step, args))
        finally:
            self.interruptible = True
        return await _carried(result) if inspect.isawaitable(result) else result

    async def _in_executor(self, step: Step[..., Any], args: tuple[Any, ...]) -> Any:
        self.give_lane_back()
        try:
            return await asyncio.get_running_loop().run_in_executor(step.executor, call_in_executor, step, *args)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise StepRaised(error) from None

    async def _in_lane(self, step: Step[..., Any], args: tuple[Any, ...]) -> Any:
        if self._lane is None:
            self._lane = await self._lanes.acquire()
        try:
            fine, value = await self._lane.submit(step.fn, args)
        except asyncio.CancelledError:
            # Given up: the thread goes on by itself, its late result finds nobody.
            self.give_lane_back(reusable=False)
            raise
        if not fine:
            raise StepRaised(value)
        return value

    def give_lane_back(self, *, reusable: bool = True) -> None:
        """Let other runs have the thread."""
        lane, self._lane = self._lane, None
        if lane is not None:
            self._lanes.release(lane, reusable=reusable)


async def _carried(work: Awaitable[T]) -> T:
    """What the step's own coroutine returns; what it raises comes out as StepRaised.

    A SystemExit or KeyboardInterrupt that leaves a task would end the loop, and with it every other run.
    """
    try:
        return await work
    except asyncio.CancelledError:
        raise  # asked for by the runtime, or the step's own: the runner tells them apart
    except GeneratorExit as error:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise error from None  # not the step's: the loop is gone and the coroutine is being closed
        raise StepRaised(error) from None
    except BaseException as error:
        raise StepRaised(error) from None


def call_in_executor(step: Step[..., Any], *args: Any) -> Any:
    """What the step returns. A future cannot carry StopIteration: whoever waits for it would wait for ever."""
    try:
        return step(*args)
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error


async def within(seconds: float, step: str, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or StepTimeoutError; work that swallows its cancellation is left behind."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _abandon(task)
        raise
    if not done:
        await _abandon(task)
        raise StepTimeoutError(step, seconds)
    return task.result()


async def _abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    # A moment for `finally` blocks; whatever the task still does after that no longer counts.
    await asyncio.wait({task}, timeout=0.5)
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
