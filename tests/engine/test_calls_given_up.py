"""Journaled calls that take too long, or that the code around them gives up."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import Pipeline, RetryPolicy, blocking, call, current_run, flow, step
from holdfast.errors import CallAbandonedError, StepTimeoutError
from holdfast.model import Commit, Kind, Reply
from holdfast.testing import ManualClock
from watched import WatchedStore

AT_ONCE = RetryPolicy(attempts=3, first_delay=0, jitter=0)


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


# Timeouts of a call


async def test_a_call_that_takes_too_long_fails_and_is_found_failed(lives: Lives) -> None:
    made, seen, once = Counter[str](), [], Once()

    async def slow() -> None:
        made["slow"] += 1
        await asyncio.Event().wait()

    @flow
    async def impatient() -> str:
        try:
            await call.options(timeout=0.01)(slow)
        except TimeoutError as error:
            seen.append(repr(error))
        await once.wait()
        return "went on"

    await lives.cut(impatient, at=once.reached)
    assert await lives.finish(impatient) == "went on"
    assert made["slow"] == 1
    assert seen[0] == seen[1]
    assert seen[0].startswith("StepTimeoutError")


async def test_a_def_call_that_takes_too_long_is_left_behind(lives: Lives) -> None:
    release, late = threading.Event(), []

    def slow() -> str:
        release.wait()
        try:
            blocking.call(late.append, "its calls are refused")
        except BaseException as error:
            late.append(type(error).__name__)
            raise
        return "late"

    @flow
    async def impatient() -> str:
        try:
            await call.options(timeout=0.01)(slow)
        except StepTimeoutError:
            release.set()
            while not late:
                await asyncio.sleep(0.001)
        return "went on"

    assert await lives.finish(impatient) == "went on"
    assert late == ["Suspended"]


async def test_a_call_that_swallows_its_timeout_can_do_no_more_and_is_tried_again(lives: Lives) -> None:
    made, late = Counter[str](), []

    async def effect(name: str) -> str:
        made[name] += 1
        return name

    async def stubborn() -> str:
        made["stubborn"] += 1
        if made["stubborn"] == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            try:
                await call(effect, "late")
            except asyncio.CancelledError as error:
                late.append(error)
        return await call(effect, "in time")

    @flow
    async def impatient() -> str:
        return await call.options(timeout=0.5, retry=AT_ONCE)(stubborn)  # time for the commit of the second attempt

    assert await lives.finish(impatient) == "in time"
    assert len(late) == 1
    assert made == {"stubborn": 2, "in time": 1}


async def test_the_deadline_of_a_call_is_that_of_the_first_timeout_around_it(lives: Lives, clock: ManualClock) -> None:
    async def deadline() -> datetime | None:
        return current_run().deadline

    @step(timeout=30)
    async def inner() -> list[datetime | None]:
        return [await deadline(), await call(deadline), await call.options(timeout=100)(deadline)]

    @flow(timeout=50)
    async def outer() -> list[datetime | None]:
        return [await call(deadline), await call.options(timeout=100)(deadline), *await inner()]

    start = clock.now()
    expected = [datetime.fromtimestamp(start + left, UTC) for left in (50, 50, 30, 30, 30)]
    assert await lives.finish(outer) == expected


@pytest.mark.parametrize("on_doubt", ["retry", "fail"])
async def test_a_call_whose_step_times_out_while_its_result_is_written_is_not_made_again(
    make_runtime: MakeRuntime, make_store: MakeStore, on_doubt: Any
) -> None:
    made: list[int] = []
    writing, timed_out = asyncio.Event(), asyncio.Event()

    class Slow(WatchedStore):
        async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
            if made and not timed_out.is_set() and any(e.kind == Kind.CALL for c in batch for e in c.entries):
                writing.set()
                await timed_out.wait()
            return await super().commit(batch)

        def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
            return None

    async def charge(amount: int) -> int:
        made.append(amount)
        return amount

    @step(timeout=0.5, retry=AT_ONCE)  # time for the intent, which is written before
    async def pay(state: Any) -> Any:
        if made:
            timed_out.set()
        try:
            return await call.options(on_doubt=on_doubt)(charge, 20)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(timed_out.set)
            raise

    async with make_runtime(Slow(make_store())) as rt:
        assert await rt.run(Pipeline("pays", [pay]), {}, id="r1") == 20
    assert (made, writing.is_set()) == ([20], True)


# Given up


async def test_a_call_given_up_by_a_timeout_of_the_body_is_given_up_again(lives: Lives) -> None:
    made, once = Counter[str](), Once()

    async def slow() -> None:
        made["slow"] += 1
        await asyncio.Event().wait()

    async def quick() -> str:
        made["quick"] += 1
        return "quick"

    @flow
    async def gives_up() -> str:
        try:
            async with asyncio.timeout(0.02):
                await call(slow)
        except TimeoutError:
            out = await call(quick)
        await once.wait()
        return out

    await lives.cut(gives_up, at=once.reached)
    assert await lives.finish(gives_up) == "quick"
    assert made == {"slow": 1, "quick": 1}
    async with lives.runtime() as rt:
        assert [(line.name, line.status) async for line in rt.ledger("r1")] == [
            ("slow", "abandoned"),
            ("quick", "done"),
        ]


async def test_a_call_given_up_and_not_given_up_again_raises_instead_of_standing_for_ever(lives: Lives) -> None:
    once = Once()

    async def slow() -> None:
        await asyncio.Event().wait()

    @flow
    async def gives_up() -> str:
        task = asyncio.ensure_future(call(slow))
        if not once.reached.is_set():
            await asyncio.sleep(0.01)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            await once.wait()
        except TimeoutError as error:
            return type(error).__name__
        return "?"

    await lives.cut(gives_up, at=once.reached)
    assert await lives.finish(gives_up) == CallAbandonedError.__name__


async def test_a_new_attempt_of_the_step_makes_calls_that_were_given_up_again(lives: Lives) -> None:
    made = Counter[str]()

    async def slow() -> str:
        made["slow"] += 1
        if made["slow"] == 1:
            await asyncio.Event().wait()
        return "in time"

    @flow(retry=AT_ONCE)
    async def hurried() -> str:
        async with asyncio.timeout(0.02 if not made["slow"] else 30):
            return await call(slow)

    assert await lives.finish(hurried) == "in time"
    assert made["slow"] == 2


async def test_a_task_group_that_failed_fails_the_same_way_after_a_crash(lives: Lives) -> None:
    made, seen, once = Counter[str](), [], Once()

    async def slow(name: str) -> None:
        made[name] += 1
        await asyncio.Event().wait()

    async def bad() -> None:
        made["bad"] += 1
        while made["s1"] + made["s2"] < 2:
            await asyncio.sleep(0)
        raise ValueError("one of them")

    async def plan_b() -> str:
        made["plan b"] += 1
        return "plan b"

    @flow
    async def grouped() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                for work in (call(slow, "s1"), call(bad), call(slow, "s2")):
                    group.create_task(work)
        except* ValueError as errors:
            seen.append([str(error) for error in errors.exceptions])
        out = await call(plan_b)
        await once.wait()
        return out

    await lives.cut(grouped, at=once.reached)
    assert await lives.finish(grouped) == "plan b"
    assert seen == [["one of them"]] * 2
    assert made == {"s1": 1, "s2": 1, "bad": 1, "plan b": 1}
