"""Runs that do nothing but wait are let go, and are taken up again when they are due: by whoever is alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from holdfast import (
    CheckpointPolicy,
    Pipeline,
    RunHandle,
    Runtime,
    ask,
    blocking,
    call,
    flow,
    receive,
    sleep,
    spawn,
    step,
)
from holdfast.context import Suspended
from holdfast.engine import waking
from holdfast.errors import (
    RunCancelledError,
    RunInterruptedError,
    RunPausedError,
    RunWaitingError,
    StepMissingError,
    VerbRefusedError,
)
from holdfast.model import Claim, Head, Query
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from waiting import until_event, until_status
from watched import WatchedStore, kill

UNTIL: tuple[Literal["ended", "settled"], ...] = ("ended", "settled")
MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


@flow
async def approval(what: str) -> str:
    return f"{what}: {await ask(f'{what}?')}"


class CountingStore(WatchedStore):
    """Counts what is asked of it by those who look for runs that are due."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.queries = self.heads = self.claims = 0

    async def list_heads(self, query: Query) -> list[Head]:
        self.queries += 1
        found = await super().list_heads(query)
        self.heads += len(found)
        return found

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        found = await super().claim_runs(query, owner)
        self.claims += len(found)
        return found

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        self.queries += 1
        return await super().read_heads(ids)


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


# Bodies that are let go


async def test_the_body_unwinds_when_it_is_let_go_and_its_finally_blocks_run(make_runtime: MakeRuntime) -> None:
    left: list[str] = []

    @flow
    async def body() -> str:
        try:
            return str(await ask("Go on?"))
        except asyncio.CancelledError:
            left.append("cancelled")
            raise
        finally:
            left.append("finally")

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        assert left == ["cancelled", "finally"]
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"
        assert left == ["cancelled", "finally", "finally"]


async def test_def_bodies_unwind_in_their_threads_and_go_on_when_they_are_due(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    left: list[Any] = []

    @step
    def approve(what: str) -> Any:
        return blocking.ask(f"{what}?")

    @flow
    def body() -> list[Any]:
        try:
            blocking.sleep(100)
            return [approve("inner"), blocking.receive("news")]
        except Exception as error:
            left.append(error)
            raise
        finally:
            left.append("finally")

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_event(rt, "r1", "waiting")
        clock.advance(100)
        await until_event(rt, "r1", "waiting", 2)
        await rt.answer("r1", "yes")
        await until_event(rt, "r1", "waiting", 3)
        await rt.send("r1", "news", "good")
        assert await handle.result() == ["yes", "good"]
        assert left == ["finally"] * 4


async def test_a_thread_that_swallows_being_let_go_cannot_use_a_verb_or_return_any_more(
    make_runtime: MakeRuntime,
) -> None:
    swallowed = 0

    @flow
    def body() -> str:
        nonlocal swallowed
        for _ in range(3):
            try:
                return str(blocking.ask("Go on?", key="one"))
            except Suspended:
                swallowed += 1
        return "stubborn"

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        assert swallowed >= 1
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"


async def test_a_body_that_swallows_being_let_go_is_let_go_all_the_same(make_runtime: MakeRuntime) -> None:
    swallowed = 0

    @flow
    async def body() -> str:
        nonlocal swallowed
        while True:
            try:
                return str(await ask("Go on?", key=f"k{swallowed}"))
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 3:
                    return "stubborn"

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        assert swallowed == 4
        swallowed = 0
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"


async def test_a_body_that_swallows_every_cancellation_does_not_stop_the_others(make_runtime: MakeRuntime) -> None:
    stop, rounds = threading.Event(), 0

    @flow
    async def stubborn() -> str:
        nonlocal rounds
        while not stop.is_set():
            try:
                return str(await ask("Go on?", key=f"k{rounds}"))
            except asyncio.CancelledError:
                rounds += 1
        return "stubborn"

    timer = threading.Timer(10.0, stop.set)  # so that the test fails instead of standing still
    timer.start()
    async with make_runtime() as rt:
        await rt.start(stubborn, id="r1")
        while rounds < 10:
            await asyncio.sleep(0)
        assert await rt.run(Pipeline("other", [lambda state: 7]), id="r2") == 7
        assert not stop.is_set()
        stop.set()
        timer.cancel()
        await until_status(rt, "r1", "waiting")


# How much it takes


async def test_waiting_runs_hold_no_slot(make_runtime: MakeRuntime) -> None:
    async with make_runtime(concurrency=2) as rt:
        handles = [await rt.start(approval, f"n{number}", id=f"r{number}") for number in range(6)]
        for handle in handles:
            await until_status(rt, handle.id, "waiting")
        assert await rt.run(Pipeline("other", [lambda state: 7]), id="other") == 7
        for handle in handles:
            await rt.answer(handle.id, "go")
        assert [await handle.result() for handle in handles] == [f"n{number}: go" for number in range(6)]


async def test_many_waiting_runs_do_not_make_waking_one_of_them_dear(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, store = 300, CountingStore(make_store())
    monkeypatch.setattr(waking, "SWEEP_EACH", 3600.0)
    async with make_runtime(store) as rt:
        for number in range(count):
            await rt.start(approval, "launch", id=f"r{number}")
        for number in range(count):
            await until_status(rt, f"r{number}", "waiting")
        store.queries = store.heads = store.claims = 0
        for number in range(10):
            await rt.answer(f"r{number}", "go")
            await RunHandle[str](rt, f"r{number}").result()
        assert store.claims == 10
        # Each is found by itself; all of them are read once in a while only, which was when they began to wait.
        assert store.heads <= 10 * 5


async def test_many_that_are_followed_while_they_wait_do_not_ask_for_each_at_every_change(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    count, store = 100, CountingStore(make_store())
    async with make_runtime(store) as rt:
        handles = [await rt.start(approval, "launch", id=f"r{number}") for number in range(count)]
        following = [asyncio.ensure_future(handle.result()) for handle in handles]
        for handle in handles:
            await until_status(rt, handle.id, "waiting")
        await rt.answer("r0", "go")
        await following[0]
        store.queries = 0
        for number in range(1, 11):
            await rt.answer(f"r{number}", "go")
            assert await following[number] == "launch: go"
        assert store.queries < 5 * count
        for one in following:
            one.cancel()


async def test_a_waiting_run_that_cannot_be_taken_up_is_not_claimed_all_the_time(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CountingStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(approval, "launch", id="r1")
        await until_status(rt, "r1", "waiting")

        async def damaged(*args: Any) -> Any:
            raise LookupError("damaged")

        monkeypatch.setattr(rt._now().engine.taking, "take", damaged)
        monkeypatch.setattr(waking, "POLL", 0.0)  # so that it is looked at all the time
        store.claims = 0
        await rt.answer("r1", "go")
        while not store.claims:
            await asyncio.sleep(0.005)
        for _ in range(20):
            await rt._now().waker._look()
        assert store.claims <= 2  # both this test and the runtime itself may have been the first to look
        for _ in range(2):  # but for whoever asks for it
            with pytest.raises(LookupError, match="damaged"):
                await rt.run(approval, "launch", id="r1")


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
