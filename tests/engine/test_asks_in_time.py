"""Questions that nobody answers in time, and those that the code around them gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from conftest import MakeRuntime
from engine.asks import asking, open_asks, until_asked
from holdfast import Pipeline, RetryPolicy, Runtime, ask, call, flow, step
from holdfast.errors import AnsweredError, WaitTimeoutError
from holdfast.model import Commit, Kind, Reply
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from waiting import until_event, until_status


async def test_after_its_time_an_ask_is_its_default_or_raises(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    @flow
    async def body() -> list[Any]:
        got = [await ask("Quick?", timeout=60, default="never mind")]
        try:
            await ask("Quicker?", timeout=30)
        except WaitTimeoutError as error:
            got.append(str(error))
        return got

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        (question,) = await until_asked(rt, "r1")
        await until_status(rt, "r1", "waiting")
        clock.advance(59.9)
        clock.advance(0.2)
        await until_event(rt, "r1", "waiting", 2)
        with pytest.raises(AnsweredError, match="its time has run out"):
            await rt.answer("r1", "late", ask=question.id)
        clock.advance(31)
        default, told = await handle.result()
        assert default == "never mind"
        assert "'Quicker?'" in told
        assert "within 30 s" in told


async def test_an_answer_and_the_timeout_race_and_the_truth_is_told(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    async with make_runtime() as rt, make_runtime() as other:
        for number in range(6):
            handle = await rt.start(asking(timeout=60, default="too late"), id=f"r{number}")
            (question,) = await until_asked(rt, handle.id)
            if number % 2:
                await until_status(rt, handle.id, "waiting")
            answering = asyncio.ensure_future(other.answer(handle.id, "in time", ask=question.id))
            for _ in range(number // 2):
                await asyncio.sleep(0)
            clock.advance(60)
            told = (await asyncio.gather(answering, return_exceptions=True))[0]
            result = await handle.result()
            if isinstance(told, str):
                assert result == "in time"
            else:
                assert isinstance(told, AnsweredError)
                assert result == "too late"


async def test_an_answer_that_came_while_nobody_was_alive_counts_although_the_time_ran_out_since(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    body = asking(timeout=60, default="too late")
    async with make_runtime() as rt:
        await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
    async with make_runtime() as stranger:
        await stranger.answer("r1", "in time")
    clock.advance(1000)
    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "in time"


async def test_an_answer_that_comes_too_late_is_refused_also_when_nobody_was_alive_at_that_moment(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    body = asking(timeout=60, default="too late")
    async with make_runtime() as rt:
        await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
    clock.advance(61)
    async with make_runtime() as stranger:
        assert [one async for one in stranger.asks()] == [one async for one in stranger.asks("r1")] == []
        for _ in range(2):
            with pytest.raises(AnsweredError):
                await stranger.answer("r1", "yes")
    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "too late"


async def test_an_ask_that_timed_out_is_asked_again_at_the_next_attempt(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @step(retry=RetryPolicy(attempts=3, first_delay=0, jitter=0))
    async def insist(state: list[Any]) -> list[Any]:
        return [await ask("Well?", timeout=60)]

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("insistent", [insist]), [], id="r1")
        seen = set()
        for times in (1, 2):
            await until_event(rt, "r1", "waiting", times)
            (question,) = await until_asked(rt, "r1")
            seen.add(question.id)
            clock.advance(61)
        await until_event(rt, "r1", "waiting", 3)
        (question,) = await until_asked(rt, "r1")
        assert question.id not in seen
        await rt.answer("r1", "at last")
        assert await handle.result() == ["at last"]


@pytest.mark.parametrize("in_task", [False, True])
async def test_the_attempts_of_a_call_that_is_let_go_while_it_asks_are_counted_on(
    make_runtime: MakeRuntime, clock: ManualClock, in_task: bool
) -> None:
    async def insist() -> Any:
        return await (asyncio.ensure_future(ask("Well?", timeout=60)) if in_task else ask("Well?", timeout=60))

    @flow
    async def body() -> str:
        for _ in range(2):
            with pytest.raises(WaitTimeoutError):
                await call.options(retry=RetryPolicy(attempts=2, first_delay=0))(insist)
        return "nobody"

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        for times in (1, 2, 3, 4):
            await until_event(rt, "r1", "waiting", times)
            clock.advance(61)
        async with asyncio.timeout(20):
            assert await handle.result() == "nobody"
        events = [event async for event in rt.events("r1")]
    assert [event.type for event in events].count("waiting") == 4
    assert not any("tried" in event.data for event in events)


async def test_two_asks_of_which_one_times_out_while_the_other_waits_on(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow
    async def body() -> list[Any]:
        return list(
            await asyncio.gather(
                ask("soon?", timeout=10, default="soon"),
                ask("late?", timeout=1000, default="late"),
                ask("never?"),
            )
        )

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_event(rt, "r1", "waiting")
        clock.advance(11)
        await until_event(rt, "r1", "waiting", 2)
        assert {one.question for one in await open_asks(rt, "r1")} == {"late?", "never?"}
        clock.advance(1000)
        await until_event(rt, "r1", "waiting", 3)
        await rt.answer("r1", "now")
        assert await handle.result() == ["soon", "late", "now"]


async def test_an_ask_given_up_while_it_is_being_written_is_not_open_either() -> None:
    class Slow(MemoryStore):
        def try_commit(self, batch: Sequence[Commit], *how: Any) -> None:
            return None

        async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
            replies = super().try_commit(batch)
            assert replies is not None
            if any(entry.kind == Kind.WAIT for commit in batch for entry in commit.entries) and not written.is_set():
                written.set()
                await cancelled.wait()
            return replies

    written, cancelled = asyncio.Event(), asyncio.Event()

    @flow
    async def body() -> str:
        asking = asyncio.ensure_future(ask("Quick?"))
        await written.wait()
        asking.cancel()
        cancelled.set()
        await asyncio.wait({asking})
        return await ask("And now?") if asking.cancelled() else "not given up"

    async with Runtime(Slow()) as rt:
        handle = await rt.start(body, id="r1")
        async with asyncio.timeout(20):
            while [question.question for question in await open_asks(rt, "r1")] != ["And now?"]:
                await asyncio.sleep(0.005)
        await rt.answer("r1", "fine")
        assert await handle.result() == "fine"


async def test_an_ask_given_up_by_the_code_around_it_is_not_open_any_more(make_runtime: MakeRuntime) -> None:
    gate, patience_ends = asyncio.Event(), asyncio.Event()

    async def busy() -> str:
        await gate.wait()
        return "done"

    @flow
    async def body() -> list[Any]:
        async def impatient() -> str:
            asking = asyncio.ensure_future(ask("Quick?"))
            await patience_ends.wait()
            asking.cancel()
            await asyncio.wait({asking})
            return "gave up" if asking.cancelled() else str(asking.result())

        return [*await asyncio.gather(impatient(), call(busy)), await ask("And now?")]

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        (question,) = await until_asked(rt, "r1")
        patience_ends.set()
        await until_asked(rt, "r1", 0)
        with pytest.raises(AnsweredError):
            await rt.answer("r1", "late", ask=question.id)
        gate.set()
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", "fine")
        assert await handle.result() == ["gave up", "done", "fine"]
