"""Where a function really runs: on the loop, in a thread of the run, or in an executor."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from holdfast.context import enter, leave, leave_for_good
from holdfast.engine.behind import goes_on
from holdfast.engine.threads import Lane, Lanes
from holdfast.errors import StepTimeoutError
from holdfast.frames import Frame
from holdfast.work import Work

T = TypeVar("T")


class StepRaised(Exception):
    """Carries what a function raised, whatever it was, so that no task or loop takes it for its own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Hands(msgspec.Struct, eq=False):
    """Does the functions of one live run. Consecutive `def` steps stay in one thread."""

    _lanes: Lanes
    _lane: Lane | None = None
    interruptible: bool = True
    """Whether the body under way can be cancelled at its await; a thread cannot."""

    async def do_step(self, step: Work, args: tuple[Any, ...], frame: Frame) -> Any:
        """The result of a step's function, which holds `frame` from now on."""
        if not step.is_async:
            return await self._do_step_in_thread(step, args, frame)
        if self._lane is not None:
            self.give_lane_back()
        task = asyncio.current_task(frame.scope.loop)
        if frame.holder is not task:
            enter(frame, task)
        try:
            return await step.fn(*args)
        except BaseException as error:
            raise _carried(error) from None

    async def _do_step_in_thread(self, step: Work, args: tuple[Any, ...], frame: Frame) -> Any:
        self.interruptible, frame.threaded = False, True
        try:
            if step.executor is None:
                if self._lane is None:
                    self._lane = await self._lanes.acquire()
                result = await self._in_own_lane(self._lane, frame, step.fn, args)
            else:
                self.give_lane_back()
                result = await _in_executor(step, args, {}, frame)
        finally:
            self.interruptible = True
        return await _finished(result, frame)

    async def _in_own_lane(self, lane: Lane, frame: Frame, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return await _in_lane(lane, frame, fn, args, {})
        except asyncio.CancelledError:
            # Given up: the thread goes on by itself, its late result finds nobody.
            self.give_lane_back(reusable=False)
            raise

    async def do_call(
        self, work: Work, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Frame, lane: Lane | None
    ) -> Any:
        """The result of a function that code inside a step calls; in `lane` when it has brought one."""
        if work.is_async:
            token = enter(frame)
            try:
                return await carried(work.fn(*args, **kwargs))
            finally:
                leave(token)
        blocked, frame.threaded = frame.threaded, True
        if lane is not None:
            frame.executor = frame.parent.executor if frame.parent is not None else None
            result = await _in_lane(lane, frame, work.fn, args, kwargs)
        elif work.executor is not None:
            result = await _in_executor(work, args, kwargs, frame)
        else:
            result = await self._in_spare_lane(work, args, kwargs, frame, blocked=blocked)
        return await _finished(result, frame)

    async def _in_spare_lane(
        self, work: Work, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Frame, *, blocked: bool
    ) -> Any:
        # Whoever blocks a thread until this is done must not wait for one of the limited ones to come free.
        lane = Lane() if blocked else await self._lanes.acquire()
        reusable = False
        try:
            result = await _in_lane(lane, frame, work.fn, args, kwargs)
            reusable = True
            return result
        except StepRaised:
            reusable = True
            raise
        finally:
            if blocked:
                lane.retire()
            else:
                self._lanes.release(lane, reusable=reusable)

    def give_lane_back(self, *, reusable: bool = True) -> None:
        """Let other runs have the thread."""
        lane, self._lane = self._lane, None
        if lane is not None:
            self._lanes.release(lane, reusable=reusable)


async def _in_lane(
    lane: Lane, frame: Frame, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    fine, value = await lane.submit(_in_frame, frame, fn, args, kwargs)
    if not fine:
        raise StepRaised(value)
    return value


def _in_frame(frame: Frame, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    enter(frame)
    return fn(*args, **kwargs)


async def _in_executor(work: Work, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Frame) -> Any:
    frame.executor = work.executor
    job = _Job(work, args, kwargs, frame)
    try:
        return await asyncio.get_running_loop().run_in_executor(work.executor, job)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        raise StepRaised(error) from None


class _Job:
    """A function on its way to an executor. In a thread it belongs to its run; in another process it cannot."""

    def __init__(self, work: Work, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Frame) -> None:
        self._work, self._args, self._kwargs, self._frame = work, args, kwargs, frame
        self._context = contextvars.copy_context()

    def __call__(self) -> Any:
        try:
            return self._context.run(_in_frame, self._frame, self._work.fn, self._args, self._kwargs)
        except StopIteration as error:
            raise _no_stop_iteration() from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _Abroad, (self._work.abroad, self._args, self._kwargs)


class _Abroad:
    """The same in a worker process."""

    def __init__(self, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn = found.fn if isinstance(found, Work) else found
        self._args, self._kwargs = args, kwargs

    def __call__(self) -> Any:
        leave_for_good()
        try:
            return self._fn(*self._args, **self._kwargs)
        except StopIteration as error:
            raise _no_stop_iteration() from error


def _no_stop_iteration() -> RuntimeError:
    # A future cannot carry it: whoever waits for it would wait for ever.
    return RuntimeError("the step raised StopIteration")


async def finished(outcome: Any, frame: Frame, *, fine: bool) -> Any:
    """What came of a function that a thread has called already."""
    if not fine:
        raise StepRaised(outcome)
    return await _finished(outcome, frame)


async def _finished(result: Any, frame: Frame) -> Any:
    """What a `def` function returned; if that is to be awaited, what comes of it."""
    if not inspect.isawaitable(result):
        return result
    frame.threaded = frame.parent.threaded if frame.parent is not None else False
    token = enter(frame)
    try:
        return await carried(result)
    finally:
        leave(token)


async def carried(work: Awaitable[T]) -> T:
    """What the coroutine returns; what it raises comes out as StepRaised."""
    try:
        return await work
    except BaseException as error:
        raise _carried(error) from None


def _carried(error: BaseException) -> BaseException:
    """What to raise in its place.

    A SystemExit or KeyboardInterrupt that leaves a task would end the loop, and with it every other run.
    """
    if isinstance(error, asyncio.CancelledError):
        return error  # asked for by the runtime, the end of the loop, or the step's own: the runner tells them apart
    if isinstance(error, GeneratorExit):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return error  # not the step's: the loop is gone and the coroutine is being closed
    return StepRaised(error)


async def in_frame(frame: Frame, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, done by a task that holds the frame."""
    enter(frame)
    return await work


async def within(
    seconds: float, step: str, run: str, work: Coroutine[Any, Any, T], given_up: Callable[[], None] | None = None
) -> T:
    """The result of `work`, or StepTimeoutError; work that swallows its cancellation is left behind.

    `given_up` is called before the work is cancelled for its timeout.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        await _abandon(task, step, run)
        raise
    if not done:
        if given_up is not None:
            given_up()
        await _abandon(task, step, run)
        raise StepTimeoutError(step, seconds)
    return task.result()


async def _abandon(task: asyncio.Task[Any], step: str, run: str) -> None:
    task.cancel()
    # A moment for `finally` blocks; whatever the task still does after that no longer counts.
    await asyncio.wait({task}, timeout=0.5)
    if not task.done():
        goes_on(task, step, run)
    task.add_done_callback(lambda t: t.cancelled() or t.exception())
