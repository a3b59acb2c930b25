"""How often a step is tried, how long it waits in between, and what a timeout does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Event, Pipeline, RetryPolicy, Runtime, current_run, step
from holdfast.errors import RunFailedError, UsageError
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class Shaky:
    """Fails so many times, then works."""

    def __init__(self, fails: int, error: BaseException | None = None) -> None:
        self.left, self.error = fails, error or OSError("no connection")
        self.attempts: list[int] = []

    async def __call__(self, state: Any) -> Any:
        self.attempts.append(current_run().attempt)
        if self.left:
            self.left -= 1
            raise self.error
        return state


def passing_time(clock: ManualClock, seen: list[Event] | None = None) -> Callable[[Event], None]:
    """Lets an hour pass after each failed attempt."""

    def on_event(event: Event) -> None:
        if seen is not None:
            seen.append(event)
        if event.type == "step_failed":
            clock.advance(3600)

    return on_event


async def test_a_step_is_tried_as_often_as_its_policy_says(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    enough, too_few = Shaky(2), Shaky(3)
    retry = RetryPolicy(attempts=3)
    async with make_runtime(on_event=passing_time(clock), lease=1e9) as rt:
        assert await rt.run(Pipeline("a", [step(name="s", retry=retry)(enough)]), {"n": 1}, id="r1") == {"n": 1}
        with pytest.raises(RunFailedError, match="no connection"):
            await rt.run(Pipeline("b", [step(name="s", retry=retry)(too_few)]), {"n": 1}, id="r2")
    assert enough.attempts == too_few.attempts == [1, 2, 3]


async def test_without_a_policy_a_step_is_tried_once(make_runtime: MakeRuntime) -> None:
    shaky = Shaky(1)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Pipeline("once", [shaky]), {}, id="r1")
    assert shaky.attempts == [1]


async def test_the_runtime_has_a_policy_for_steps_without_one(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    general, own = Shaky(2), Shaky(1)
    settings = {"retry": RetryPolicy(attempts=3), "on_event": passing_time(clock), "lease": 1e9}
    async with make_runtime(**settings) as rt:
        await rt.run(Pipeline("a", [general]), {}, id="r1")
        with pytest.raises(RunFailedError):
            await rt.run(Pipeline("b", [step(name="s", retry=RetryPolicy())(own)]), {}, id="r2")
    assert (general.attempts, own.attempts) == ([1, 2, 3], [1])


async def test_an_error_class_marked_never_is_not_retried(make_runtime: MakeRuntime) -> None:
    shaky = Shaky(1, UnicodeError("wrong for ever"))
    retry = RetryPolicy(attempts=5, never=(ValueError,))
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="wrong for ever"):
            await rt.run(Pipeline("never", [step(name="s", retry=retry)(shaky)]), {}, id="r1")
    assert shaky.attempts == [1]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_is_no_exception_is_not_retried(make_runtime: MakeRuntime, error: BaseException) -> None:
    shaky = Shaky(1, error)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Pipeline("exit", [step(name="s", retry=RetryPolicy(attempts=5))(shaky)]), {}, id="r1")
    assert shaky.attempts == [1]


async def test_the_wait_grows_and_is_capped(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    waits: list[float] = []

    def on_event(event: Event) -> None:
        if event.type == "step_failed" and "retry_at" in event.data:
            waits.append(event.data["retry_at"] - clock.now())
            clock.advance(waits[-1])

    retry = RetryPolicy(attempts=7, first_delay=1, factor=2, max_delay=10, jitter=0)
    async with make_runtime(on_event=on_event, lease=1e9) as rt:
        await rt.run(Pipeline("wait", [step(name="s", retry=retry)(Shaky(6))]), {}, id="r1")
    assert waits == [1, 2, 4, 8, 10, 10]


def test_jitter_spreads_the_wait_by_its_share_to_both_sides() -> None:
    retry = RetryPolicy(attempts=99, first_delay=8, factor=1, jitter=0.25)
    assert retry.delay(1, lambda: 0.0) == 6
    assert retry.delay(1, lambda: 0.5) == 8
    assert retry.delay(1, lambda: 1.0) == 10
    assert retry.delay(10_000, lambda: 0.5) == 8


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"first_delay": -1}, {"max_delay": -1}, {"factor": 0.5}, {"jitter": 2}, {"jitter": -1}]
)
def test_a_policy_that_cannot_be_is_refused_when_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="RetryPolicy"):
        RetryPolicy(**wrong)


async def test_the_next_attempt_does_not_begin_before_its_time(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    failed, shaky = asyncio.Event(), Shaky(1)
    retry = RetryPolicy(attempts=2, first_delay=10, jitter=0)
    flow = Pipeline("early", [step(name="s", retry=retry)(shaky)])
    async with make_runtime(on_event=lambda event: event.type == "step_failed" and failed.set()) as rt:
        handle = await rt.start(flow, {}, id="r1")
        await failed.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(9.9)
        for _ in range(20):
            await asyncio.sleep(0)
        assert shaky.attempts == [1]
        clock.advance(0.1)
        assert await handle.result() == {}
    assert shaky.attempts == [1, 2]


async def test_step_failed_comes_once_per_attempt_and_in_order(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    live: list[Event] = []
    flow = Pipeline("order", [step(name="s", retry=RetryPolicy(attempts=3))(Shaky(2))])
    async with make_runtime(on_event=passing_time(clock, live), lease=1e9) as rt:
        await rt.run(flow, {}, id="r1")
        stored = [event.type async for event in rt.events("r1")]
    expected = ["step_started", "step_failed"] * 2 + ["step_started", "step_completed", "checkpointed", "completed"]
    assert stored == ["created", *expected]
    assert [event.type for event in live] == ["created", *expected]
    attempts = [event.data["attempt"] for event in live if event.type == "step_failed"]
    assert attempts == [1, 2]


async def test_attempts_and_the_wait_survive_a_kill(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    failed, shaky = asyncio.Event(), Shaky(5)
    retry = RetryPolicy(attempts=2, first_delay=100, jitter=0)
    flow = Pipeline("kill", [step(name="s", retry=retry)(shaky)])
    store = WatchedStore(make_store())
    async with make_runtime(store, on_event=lambda event: event.type == "step_failed" and failed.set()) as rt:
        await rt.start(flow, {}, id="r1")
        await failed.wait()
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        running = asyncio.ensure_future(rt.run(flow, {}, id="r1"))
        await asyncio.wait({running}, timeout=0.05)
        assert shaky.left == 4  # its time has not come
        clock.advance(100)
        with pytest.raises(RunFailedError):
            await running
    assert shaky.left == 3


async def test_resuming_a_failed_run_gives_its_step_all_attempts_again(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    shaky = Shaky(3)
    flow = Pipeline("again", [step(name="s", retry=RetryPolicy(attempts=2))(shaky)])
    async with make_runtime(on_event=passing_time(clock), lease=1e9) as rt:
        with pytest.raises(RunFailedError):
            await rt.run(flow, {}, id="r1")
        assert await (await rt.resume("r1")).result() == {}
    assert shaky.attempts == [1, 2, 1, 2]


# Timeouts


async def test_an_async_step_that_takes_too_long_is_cancelled_and_tried_again(make_runtime: MakeRuntime) -> None:
    ended: list[str] = []

    @step(timeout=0.25, retry=RetryPolicy(attempts=2, first_delay=0))
    async def slow(state: list[str]) -> list[str]:
        if current_run().attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cleaned up")
        return [*state, "done"]

    async with make_runtime() as rt:
        assert await rt.run(Pipeline("slow", [slow]), [], id="r1") == ["done"]
        errors = [event.error async for event in rt.events("r1") if event.type == "step_failed"]
    assert ended == ["cleaned up"]
    assert errors == ["StepTimeoutError: step 'slow' took longer than its timeout of 0.25 s"]


async def test_a_step_that_takes_too_long_is_not_tried_again_where_timeouts_are_never_to_be(
    make_runtime: MakeRuntime,
) -> None:
    attempts: list[int] = []

    @step(timeout=0.01, retry=RetryPolicy(attempts=2, first_delay=0, never=(TimeoutError,)))
    async def slow(state: Any) -> None:
        attempts.append(current_run().attempt)
        await asyncio.Event().wait()

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="StepTimeoutError"):
            await rt.run(Pipeline("slow", [slow]), {}, id="r1")
    assert attempts == [1]


async def test_the_late_result_of_a_def_step_is_refused(make_runtime: MakeRuntime) -> None:
    release, late = threading.Event(), threading.Event()

    @step(timeout=0.25, retry=RetryPolicy(attempts=2, first_delay=0))
    def slow(state: list[str]) -> list[str]:
        if current_run().attempt == 1:
            release.wait()
            late.set()
            return ["too late"]
        return [*state, "in time"]

    def let_go(state: list[str]) -> None:
        release.set()
        late.wait()

    async with make_runtime() as rt:
        assert await rt.run(Pipeline("slow", [slow, let_go]), [], id="r1") == ["in time"]


async def test_a_step_that_swallows_its_cancellation_is_left_behind(make_runtime: MakeRuntime) -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    @step(timeout=0.02)
    async def stubborn(state: Any) -> Any:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                pass
        ended.set()
        return "too late"

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="timeout"):
            await rt.run(Pipeline("stubborn", [stubborn]), {}, id="r1")
        release.set()
        await ended.wait()
        run = await rt.get("r1")
    assert run is not None
    assert run.status == "failed"


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_cannot_be_is_refused_when_declared(timeout: float) -> None:
    with pytest.raises(UsageError, match="timeout"):
        step(timeout=timeout)(lambda state: state)
