"""Runs that do nothing but wait are let go, and are taken up again when they are due: by whoever is alive."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import CheckpointPolicy, Pipeline, ask, call, flow, receive, sleep, spawn
from holdfast.engine import waking
from holdfast.errors import (
    RunCancelledError,
    RunInterruptedError,
    RunPausedError,
    RunWaitingError,
    StepMissingError,
    VerbRefusedError,
)
from holdfast.testing import ManualClock
from waiting import until_event, until_status
from watched import WatchedStore, kill

UNTIL: tuple[Literal["ended", "settled"], ...] = ("ended", "settled")


@flow
async def approval(what: str) -> str:
    return f"{what}: {await ask(f'{what}?')}"


# Without a process


async def test_a_run_asks_in_one_process_is_answered_in_another_and_finished_by_a_third(
    make_runtime: MakeRuntime,
) -> None:
    async with make_runtime() as rt:
        await rt.start(approval, "launch", id="r1")
        run = await until_status(rt, "r1", "waiting")
        assert run.owner is None
        assert run.waiting_for is not None
        assert "launch?" in run.waiting_for
    async with make_runtime() as stranger:
        await stranger.answer("r1", "go")
        assert (await until_status(stranger, "r1", "waiting")).status == "waiting"
    async with make_runtime(recover=True) as rt:
        rt.register(approval)
        run = await until_status(rt, "r1", "completed")
        assert run.waiting_for is None
        assert await rt.result("r1") == "launch: go"


async def test_what_else_is_under_way_finishes_before_the_run_is_let_go(make_runtime: MakeRuntime) -> None:
    inside, gate, made = asyncio.Event(), asyncio.Event(), list[str]()

    async def work() -> str:
        made.append("work")
        inside.set()
        await gate.wait()
        return "worked"

    @flow
    async def body() -> list[Any]:
        return list(await asyncio.gather(ask("Go on?"), call(work)))

    async with make_runtime() as rt:
        await rt.start(body, id="r1")
        await inside.wait()
        await until_event(rt, "r1", "wait")
        run = await rt.get("r1")
        assert run is not None
        assert run.status == "running"
        gate.set()
        await until_status(rt, "r1", "waiting")
    async with make_runtime() as stranger:
        await stranger.answer("r1", True)
    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == [True, "worked"]
    assert made == ["work"]


async def test_another_runtime_that_recovers_takes_a_run_up_that_was_let_go_elsewhere(
    make_runtime: MakeRuntime,
) -> None:
    async with make_runtime(recover=True) as other:
        other.register(approval)
        async with make_runtime() as rt:
            await rt.start(approval, "launch", id="r1")
            await until_status(rt, "r1", "waiting")
        await other.answer("r1", "go")
        await until_status(other, "r1", "completed")
        assert await other.result("r1") == "launch: go"


async def test_a_runtime_wakes_what_it_let_go_itself_also_when_the_answer_comes_from_elsewhere(
    make_runtime: MakeRuntime,
) -> None:
    async with make_runtime() as rt, make_runtime() as stranger:
        await rt.start(approval, "launch", id="r1")
        await until_status(rt, "r1", "waiting")
        await stranger.answer("r1", "go")
        await until_status(stranger, "r1", "completed")
        assert await stranger.result("r1") == "launch: go"


async def test_a_crash_between_the_answer_and_its_use_loses_nothing(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())
    store.refuse = lambda commit: any(entry.kind == "answer" for entry in commit.entries)
    async with make_runtime(store) as rt:
        await rt.start(approval, "launch", id="r1")
        await until_event(rt, "r1", "wait")
        assert [question.question async for question in rt.asks()] == ["launch?"]
        await rt.answer("r1", "go")
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        assert [question.run async for question in rt.asks()] == ["r1"]
        assert await rt.run(approval, "launch", id="r1") == "launch: go"


async def test_a_runtime_that_closes_with_waits_leaves_them_waiting_and_does_not_dawdle(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow
    async def body() -> list[Any]:
        return list(await asyncio.gather(ask("Go on?"), receive("news"), sleep(0.3)))

    async with make_runtime(grace=60) as rt:
        handle = await rt.start(body, id="r1")
        following = asyncio.ensure_future(handle.result())
        await until_event(rt, "r1", "wait", 3)
        async with asyncio.timeout(10):
            await rt.close()
        with pytest.raises(RunInterruptedError):
            await following
    async with make_runtime() as stranger:
        assert (await until_status(stranger, "r1", "waiting", "interrupted")).status == "waiting"


# Verbs on a waiting run


async def test_run_joins_a_waiting_run_and_gives_its_result_when_it_is_due(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(approval, "launch", id="r1")
        await until_status(rt, "r1", "waiting")
    async with make_runtime() as rt, make_runtime() as other:
        joined = [asyncio.ensure_future(one.run(approval, "launch", id="r1")) for one in (rt, rt, other)]
        with pytest.raises(RunWaitingError, match=r"launch\?"):
            await rt.run(approval, "launch", id="r1", until="settled")
        with pytest.raises(RunWaitingError):
            await rt.resume("r1")
        await rt.answer("r1", "go")
        assert await asyncio.gather(*joined) == ["launch: go"] * 3
        assert [event.type async for event in rt.events("r1")].count("completed") == 1


async def test_whoever_follows_a_run_bears_that_it_is_let_go_any_number_of_times(make_runtime: MakeRuntime) -> None:
    times = 12

    @flow
    async def collect() -> list[Any]:
        return [await receive("item") for _ in range(times)]

    async with make_runtime() as rt:
        await rt.start(collect, id="r1")
        await until_status(rt, "r1", "waiting")
        following = asyncio.ensure_future(rt.run(collect, id="r1"))
        for number in range(times):
            await until_event(rt, "r1", "waiting", number + 1)
            assert _depth(following) < 2 * times
            await rt.send("r1", "item", number)
        assert await following == list(range(times))


def _depth(task: asyncio.Task[Any]) -> int:
    """How many coroutines wait for one another in the task; Python bears about a thousand."""
    depth, inner = 0, task.get_coro()
    while (inner := getattr(inner, "cr_await", None)) is not None:
        depth += 1
    return depth


async def test_run_until_settled_raises_what_a_new_run_waits_for(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError, match=r"launch\?") as caught:
            await rt.run(approval, "launch", id="r1", until="settled")
        assert caught.value.waiting_for is not None
        await rt.answer("r1", "go")
        assert await rt.run(approval, "launch", id="r1", until="settled") == "launch: go"


async def test_pause_resume_and_cancel_of_a_waiting_run(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(approval, "launch", id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.pause("r1")
        with pytest.raises(RunPausedError):
            await handle.result()
        await rt.answer("r1", "go")
        assert (await until_status(rt, "r1", "paused")).status == "paused"
        assert await (await rt.resume("r1")).result() == "launch: go"

        handle = await rt.start(approval, "landing", id="r2")
        await until_status(rt, "r2", "waiting")
        await rt.cancel("r2", "fog")
        with pytest.raises(RunCancelledError, match="fog"):
            await handle.result()
        with pytest.raises(VerbRefusedError):
            await rt.answer("r2", "go")


async def test_a_paused_run_that_is_resumed_waits_on(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    @flow
    async def body() -> str:
        return str(await ask("Go on?", timeout=100, default="too late"))

    async with make_runtime() as rt:
        await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.pause("r1")
        clock.advance(50)
        handle = await rt.resume("r1")
        await until_event(rt, "r1", "waiting", 2)
        clock.advance(50)
        assert await handle.result() == "too late"


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_pause_and_cancel_reach_a_run_that_waits_and_works(make_runtime: MakeRuntime, verb: str) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        inside.set()
        await gate.wait()
        return "worked"

    @flow
    async def body() -> list[Any]:
        return list(await asyncio.gather(ask("Go on?"), call(work)))

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await inside.wait()
        await until_event(rt, "r1", "wait")
        await getattr(rt, verb)("r1")
        gate.set()
        with pytest.raises(RunPausedError if verb == "pause" else RunCancelledError):
            await handle.result()
        if verb == "pause":
            handle = await rt.resume("r1")
            await rt.answer("r1", True)
            assert await handle.result() == [True, "worked"]


async def test_rewind_and_delete_of_a_waiting_run(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(approval, "launch", id="r1")
        await until_status(rt, "r1", "waiting")
        (before,) = [question async for question in rt.asks("r1")]
        handle = await rt.rewind("r1@1")
        await until_event(rt, "r1", "waiting", 2)
        (after,) = [question async for question in rt.asks("r1")]
        assert after.id != before.id
        await rt.answer("r1", "go")
        assert await handle.result() == "launch: go"
        await rt.start(approval, "launch", id="r2")
        await until_status(rt, "r2", "waiting")
        await rt.delete("r2")
        assert await rt.get("r2") is None
        assert [question async for question in rt.asks()] == []


async def test_a_rewind_to_where_a_question_was_open_asks_it_anew(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    async def first(state: list[Any]) -> list[Any]:
        return [*state, "first"]

    async def second(state: list[Any]) -> list[Any]:
        return [*state, await ask("Go on?", timeout=100, default="too late")]

    # The save of the first step is skipped, so the checkpoint that is made when the run is let go knows the question.
    pipeline = Pipeline("two", [first, second], policy=CheckpointPolicy(every_n_steps=2))
    async with make_runtime() as rt:
        handle = await rt.start(pipeline, [], id="r1")
        await until_status(rt, "r1", "waiting")
        last = [checkpoint.id async for checkpoint in rt.checkpoints("r1")][-1]
        await rt.answer("r1", "yes")
        assert await handle.result() == ["first", "yes"]
        handle = await rt.rewind(last)
        await until_event(rt, "r1", "waiting", 2)
        await rt.answer("r1", "no")
        assert await handle.result() == ["first", "no"]
        handle = await rt.rewind(last)
        await until_event(rt, "r1", "waiting", 3)
        clock.advance(100)
        assert await handle.result() == ["first", "too late"]
        assert [problem async for problem in rt.doctor()] == []


# What comes while it is being let go


@pytest.mark.parametrize("what", ["a message", "a child's end"])
async def test_what_comes_in_while_the_run_unwinds_wakes_it_at_once(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """By then it is taken out of the inbox, so that nobody who looks for runs with mail finds it."""
    monkeypatch.setattr(waking, "CHILDREN_EVERY", 3600.0)
    unwinding, unwound, child_may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @flow
    async def child() -> str:
        await call(child_may_end.wait)
        return "came"

    @flow
    async def body() -> str:
        try:
            return str(await (receive("news") if what == "a message" else spawn(child, id="child")))
        except asyncio.CancelledError:
            unwinding.set()
            await unwound.wait()
            raise

    class TellsWhenTaken(WatchedStore):
        def _count(self, batch: Any) -> None:
            super()._count(batch)
            if any(commit.run == "r1" and commit.take for commit in batch):
                unwound.set()

    async with make_runtime(TellsWhenTaken(make_store())) as rt:
        handle = await rt.start(body, id="r1")
        await unwinding.wait()
        if what == "a message":
            await rt.send("r1", "news", "came")
        child_may_end.set()
        async with asyncio.timeout(20):
            assert await handle.result() == "came"


async def test_whoever_runs_an_answered_run_whose_step_is_gone_is_told_so(make_runtime: MakeRuntime) -> None:
    async def two(state: Any) -> Any:
        return await ask("go?")

    async def zwei(state: Any) -> Any:
        raise AssertionError

    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(Pipeline("order", [two]), {}, id="r1", until="settled")
        await rt.answer("r1", True)
    async with make_runtime() as rt, asyncio.timeout(10):
        for until in UNTIL:
            with pytest.raises(StepMissingError, match="two"):
                await rt.run(Pipeline("order", [zwei]), {}, id="r1", until=until)
