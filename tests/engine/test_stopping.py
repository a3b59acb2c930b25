"""Pause, resume and cancel: during a step, a backoff, a pause, in the queue, and from another runtime."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Event, Pipeline, RetryPolicy, RunStatus, Runtime, step
from holdfast.errors import RunCancelledError, RunOwnedError, RunPausedError, VerbRefusedError
from holdfast.model import Mail
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class Gated:
    """A flow of two steps; the first one waits at a gate."""

    def __init__(self) -> None:
        self.inside, self.gate = asyncio.Event(), asyncio.Event()
        self.cancelled = False
        self.calls: list[str] = []
        self.flow = Pipeline("gated", [self.wait, self.finish])

    async def wait(self, state: list[str]) -> list[str]:
        self.calls.append("wait")
        self.inside.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return [*state, "waited"]

    async def finish(self, state: list[str]) -> list[str]:
        self.calls.append("finish")
        return [*state, "finished"]


@pytest.fixture(params=["from here", "from another runtime"])
def from_elsewhere(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "from another runtime")


async def test_pause_lets_the_step_under_way_finish(make_runtime: MakeRuntime, from_elsewhere: bool) -> None:
    gated = Gated()
    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        await (other if from_elsewhere else rt).pause("r1")
        gated.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.step, run.next) == ("paused", 1, "finish")
        await handle.resume()
        assert await handle.result() == ["waited", "finished"]
    assert gated.calls == ["wait", "finish"]


async def test_pausing_twice_is_undone_by_one_resume(make_runtime: MakeRuntime, from_elsewhere: bool) -> None:
    gated = Gated()
    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        for _ in range(3):
            await (other if from_elsewhere else rt).pause("r1")
        gated.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        await handle.resume()
        assert await handle.result() == ["waited", "finished"]


async def test_a_cancel_reaches_the_async_step_under_way(make_runtime: MakeRuntime, from_elsewhere: bool) -> None:
    gated = Gated()
    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        await (other if from_elsewhere else rt).cancel("r1", "enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await handle.result()
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.step, run.error) == ("cancelled", 0, "enough")
    assert gated.cancelled
    assert gated.calls == ["wait"]


async def test_a_cancel_waits_for_a_def_step_which_is_saved_and_goes_no_further(
    make_runtime: MakeRuntime, from_elsewhere: bool
) -> None:
    inside, release = threading.Event(), threading.Event()

    def block(state: Any) -> str:
        inside.set()
        release.wait()
        return "done"

    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(Pipeline("block", [block]), {}, id="r1")
        await asyncio.to_thread(inside.wait)
        await (other if from_elsewhere else rt).cancel("r1")
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        release.set()
        with pytest.raises(RunCancelledError):
            await waiting
        assert [point.state async for point in rt.checkpoints("r1")] == [{}, "done"]
        assert (await rt.get("r1")).status == RunStatus.CANCELLED


async def test_a_def_step_that_fails_after_the_cancel_leaves_the_run_cancelled(make_runtime: MakeRuntime) -> None:
    inside, release = threading.Event(), threading.Event()

    def fail(state: Any) -> None:
        inside.set()
        release.wait()
        raise ValueError("too late")

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("fail", [fail]), {}, id="r1")
        await asyncio.to_thread(inside.wait)
        await rt.cancel("r1", "enough")
        release.set()
        with pytest.raises(RunCancelledError, match="enough"):
            await handle.result()


async def test_steps_that_the_policy_had_not_saved_are_saved_with_the_cancel(make_runtime: MakeRuntime) -> None:
    inside = asyncio.Event()

    async def pay(state: Any) -> str:
        return "paid"

    async def wait(state: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    async with make_runtime() as rt:
        policy = CheckpointPolicy(every_n_steps=10)
        handle = await rt.start(Pipeline("order", [pay, wait], policy=policy), "open", id="r1")
        await inside.wait()
        await handle.cancel()
        with pytest.raises(RunCancelledError):
            await handle.result()
        assert [(point.state, point.next) async for point in rt.checkpoints("r1")][-1] == ("paid", "wait")


async def test_a_step_that_swallows_the_cancel_does_not_undo_it(make_runtime: MakeRuntime) -> None:
    inside = asyncio.Event()

    async def swallow(state: Any) -> str:
        inside.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "done all the same"

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("swallow", [swallow]), {}, id="r1")
        await inside.wait()
        await rt.cancel("r1")
        with pytest.raises(RunCancelledError):
            await handle.result()
        assert [event.type async for event in rt.events("r1")] == ["created", "cancelled"]


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_a_run_stops_in_the_middle_of_a_backoff(
    make_runtime: MakeRuntime, clock: ManualClock, from_elsewhere: bool, verb: str
) -> None:
    failed, attempts = asyncio.Event(), []

    @step(retry=RetryPolicy(attempts=3, first_delay=1000, jitter=0))
    async def shaky(state: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("again")
        return state

    def on_event(event: Event) -> None:
        if event.type == "step_failed":
            failed.set()

    async with make_runtime(on_event=on_event) as rt, make_runtime() as other:
        handle = await rt.start(Pipeline("shaky", [shaky]), {}, id="r1")
        await failed.wait()
        await getattr(other if from_elsewhere else rt, verb)("r1")
        with pytest.raises(RunPausedError if verb == "pause" else RunCancelledError):
            await handle.result()
        assert attempts == [1]
        if verb == "pause":
            clock.advance(1000)
            await handle.resume()
            assert await handle.result() == {}


async def test_cancel_while_paused_is_final(make_runtime: MakeRuntime, from_elsewhere: bool) -> None:
    gated = Gated()
    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        await rt.pause("r1")
        gated.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        await (other if from_elsewhere else rt).cancel("r1", "enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await handle.result()
    assert gated.calls == ["wait"]


async def test_pause_and_cancel_at_once_cancels(make_runtime: MakeRuntime) -> None:
    gated = Gated()
    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        paused, cancelled = await asyncio.gather(rt.pause("r1"), other.cancel("r1"), return_exceptions=True)
        assert cancelled is None
        assert paused is None or isinstance(paused, VerbRefusedError)
        gated.gate.set()
        with pytest.raises(RunCancelledError):
            await handle.result()


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_a_run_in_the_queue_is_stopped_before_its_first_step(
    make_runtime: MakeRuntime, from_elsewhere: bool, verb: str
) -> None:
    gated, queued = Gated(), Gated()
    queued.gate.set()
    queued_flow = Pipeline("queued", [queued.wait, queued.finish])
    async with make_runtime(concurrency=1) as rt, make_runtime() as other:
        await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        handle = await rt.start(queued_flow, [], id="r2")
        run = await rt.get("r2")
        assert run is not None
        assert (run.status, run.started_at) == ("pending", None)
        await getattr(other if from_elsewhere else rt, verb)("r2")
        with pytest.raises(RunPausedError if verb == "pause" else RunCancelledError):
            await handle.result()
        assert queued.calls == []
        gated.gate.set()
        assert await rt.run(gated.flow, [], id="r1") == ["waited", "finished"]
        if verb == "pause":
            await handle.resume()
            assert await handle.result() == ["waited", "finished"]


async def test_no_more_runs_than_allowed_are_driven_at_once(make_runtime: MakeRuntime) -> None:
    busy, most, together = 0, 0, asyncio.Event()

    async def work(state: Any) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        if busy == 3:
            together.set()
        await together.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        busy -= 1

    flow = Pipeline("work", [work])
    async with make_runtime(concurrency=3) as rt:
        handles = await asyncio.gather(*(rt.start(flow, {}, id=f"r{n}") for n in range(12)))
        for handle in handles:
            await handle.result()
    assert most == 3


async def test_runs_that_are_started_at_once_are_pending_until_it_is_their_turn(make_runtime: MakeRuntime) -> None:
    gated = Gated()
    async with make_runtime(concurrency=1) as rt:
        await asyncio.gather(*(rt.start(gated.flow, [], id=f"r{n}") for n in range(4)))
        await gated.inside.wait()
        statuses = sorted([run.status.value async for run in rt.list()])
        assert statuses == ["pending", "pending", "pending", "running"]
        gated.gate.set()


async def test_a_pause_outlives_restarts(make_runtime: MakeRuntime) -> None:
    gated = Gated()
    async with make_runtime() as rt:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        await handle.pause()
        gated.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
    for _ in range(2):
        async with make_runtime() as rt:
            rt.register(gated.flow)
            assert await rt.recover() == []
            assert await rt.interrupted() == []
            with pytest.raises(RunPausedError):
                await rt.run(gated.flow, [], id="r1")
    async with make_runtime() as rt:
        rt.register(gated.flow)
        assert await (await rt.resume("r1")).result() == ["waited", "finished"]


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_what_was_asked_of_an_owner_that_died_is_done_by_the_next(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, verb: str
) -> None:
    gated, store = Gated(), WatchedStore(make_store())
    inside, release = threading.Event(), threading.Event()

    def block(state: Any) -> Any:
        inside.set()
        release.wait()
        return state

    flow = Pipeline("block", [block, gated.finish])
    async with make_runtime() as other:
        async with make_runtime(store) as rt:
            await rt.start(flow, [], id="r1")
            await asyncio.to_thread(inside.wait)
            await getattr(other, verb)("r1")
            await kill(rt, store, clock)
            release.set()
        other.register(flow)
        (handle,) = await other.recover()
        with pytest.raises(RunPausedError if verb == "pause" else RunCancelledError):
            await handle.result()
        assert gated.calls == []
        if verb == "pause":
            await handle.resume()
            assert await handle.result() == ["finished"]


async def test_a_cancel_that_was_refused_does_not_come_back_after_a_rewind(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    """The mail of a verb can arrive behind the last commit of the run that it was for."""
    flow, store = Pipeline("quick", [lambda state: "done"]), make_store()
    async with make_runtime() as rt:
        await rt.run(flow, {}, id="r1")
        await store.open()
        for verb in ("cancel", "pause"):
            await store.post_mail("r1", Mail(verb))
        assert await (await rt.rewind("r1@1")).result() == "done"
        await store.close()


async def test_two_who_resume_at_once_are_one_that_does_and_one_that_is_refused(make_runtime: MakeRuntime) -> None:
    gated = Gated()
    async with make_runtime() as rt:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        await handle.pause()
        gated.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        both = await asyncio.gather(rt.resume("r1"), rt.resume("r1"), return_exceptions=True)
        refused = [one for one in both if isinstance(one, RunOwnedError | VerbRefusedError)]
        assert len(refused) == 1
        assert await handle.result() == ["waited", "finished"]
    assert gated.calls == ["wait", "finish"]


async def test_all_who_run_an_interrupted_run_at_once_get_its_result(make_runtime: MakeRuntime) -> None:
    gated = Gated()
    async with make_runtime(grace=0) as rt:
        await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
    gated.gate.set()
    async with make_runtime() as rt, make_runtime() as other:
        runs = [one.run(gated.flow, [], id="r1") for one in (rt, rt, other, rt, other)]
        assert await asyncio.gather(*runs) == [["waited", "finished"]] * 5
    assert gated.calls == ["wait", "wait", "finish"]


async def test_resume_and_cancel_at_once_tell_both_the_truth(make_runtime: MakeRuntime) -> None:
    gated = Gated()
    async with make_runtime() as rt:
        handle = await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        await handle.pause()
        gated.gate.set()
        with pytest.raises(RunPausedError):
            await handle.result()
        resumed, cancelled = await asyncio.gather(rt.resume("r1"), rt.cancel("r1"), return_exceptions=True)
        assert cancelled is None or not isinstance(resumed, BaseException)
        try:
            assert await handle.result() == ["waited", "finished"]
        except RunCancelledError:
            assert cancelled is None


async def test_a_run_that_is_live_is_owned_by_name(make_runtime: MakeRuntime) -> None:
    gated = Gated()
    async with make_runtime() as rt, make_runtime() as other:
        await rt.start(gated.flow, [], id="r1")
        await gated.inside.wait()
        other.register(gated.flow)
        run = await other.get("r1")
        assert run is not None
        assert run.owner is not None
        with pytest.raises(RunOwnedError, match=run.owner):
            await other.resume("r1")
        gated.gate.set()


@pytest.mark.parametrize("turns", range(3))
async def test_who_looks_at_a_run_just_before_the_runtime_closes_gets_an_answer(tmp_path: Path, turns: int) -> None:
    store = f"sqlite:{tmp_path}/runs.db"
    async with Runtime(store) as rt:
        await rt.run(Pipeline("flow", [lambda state: None]), {}, id="r1")
    async with Runtime(store) as rt:
        asking = asyncio.ensure_future(rt.get("r1"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await rt.close()
        assert await asking is not None


@pytest.mark.parametrize(("verb", "status"), [("cancel", "cancelled"), ("pause", "paused")])
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "def"])
async def test_what_was_asked_of_a_run_is_not_forgotten_when_its_runtime_closes_in_the_middle_of_a_step(
    make_runtime: MakeRuntime, verb: str, status: str, in_thread: bool
) -> None:
    inside, gate, ships = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    async def waits(state: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    def waits_in_thread(state: Any) -> None:
        loop.call_soon_threadsafe(inside.set)
        gate.wait(10)

    flow = Pipeline("orders", [waits_in_thread if in_thread else waits, lambda state: ships.append("shipped")])
    async with make_runtime(grace=0) as rt:
        await rt.start(flow, {}, id="r1")
        await inside.wait()
        await getattr(rt, verb)("r1")
    gate.set()
    async with make_runtime() as rt:
        run = await rt.get("r1")
        assert run is not None
        assert run.status == status
        with pytest.raises((RunCancelledError, RunPausedError)):
            await rt.run(flow, {}, id="r1")
    assert ships == []


async def test_a_pause_of_a_run_whose_owner_died_does_not_overrule_a_cancel(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    gated, store = Gated(), WatchedStore(make_store())
    async with make_runtime() as rt:
        async with make_runtime(store) as owner:
            await owner.start(gated.flow, [], id="r1")
            await gated.inside.wait()
            store.severed = True  # it hears of nothing any more
            await rt.cancel("r1", "fraud")
            await kill(owner, store, clock)
        rt.register(gated.flow)
        await rt.pause("r1")
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.error) == ("cancelled", "fraud")


async def test_a_run_that_crashed_too_often_is_cancelled_if_that_was_asked_for(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    gated, store = Gated(), WatchedStore(make_store())
    async with make_runtime(crash_limit=1) as rt:
        async with make_runtime(store) as owner:
            await owner.start(gated.flow, [], id="r1")
            await gated.inside.wait()
            store.severed = True
            await rt.cancel("r1")
            await kill(owner, store, clock)
        with pytest.raises(RunCancelledError):
            await rt.run(gated.flow, [], id="r1")
    assert gated.calls == ["wait"]
