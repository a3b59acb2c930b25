"""Runs that wait in a queue for a worker: who takes which, when, and how many at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Agent, CheckpointPolicy, Graph, Pipeline, RunLimit, Runtime, Strategy, Team, flow, spawn, step
from holdfast.engine import custody, following, waits
from holdfast.errors import RunCancelledError, RunExistsError, StoreUnavailableError, UsageError
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]
WORKER: dict[str, Any] = {"recover": True, "heartbeat": 0.01}


class Noted:
    """A flow that notes which of its runs are begun, and holds them as long as the test wants."""

    def __init__(self, name: str = "noted", limit: Any = None) -> None:
        self.begun: list[str] = []
        self.under_way: set[str] = set()
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.flow = Pipeline(name, [self.work], limit=limit)

    async def work(self, state: str) -> str:
        self.begun.append(state)
        self.under_way.add(state)
        self.most = max(self.most, len(self.under_way))
        await self.gate.wait()
        await asyncio.sleep(0)
        self.under_way.discard(state)
        return state.upper()


async def test_a_start_with_a_queue_only_puts_it_there(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    async with make_runtime() as rt:
        handle = await rt.start(noted.flow, "a", id="r1", queue="mail", priority=3, key="ann", metadata={"x": 1})
        run = await rt.get("r1")
        assert run is not None
        assert (handle.id, run.status, run.queue, run.priority, run.key) == ("r1", "pending", "mail", 3, "ann")
        assert (run.owner, run.attempt, run.metadata) == (None, 1, {"x": 1})
        assert await rt.recover() == []
        assert await rt.interrupted() == []
        with pytest.raises(RunExistsError):
            await rt.start(noted.flow, "a", id="r1", queue="mail")
    assert noted.begun == []


async def test_a_worker_takes_it_and_whoever_started_it_gets_the_result(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    async with make_runtime() as rt, make_runtime(**WORKER) as worker:
        worker.register(noted.flow)
        handles = [await rt.start(noted.flow, name, priority=1) for name in "abc"]
        assert [await handle.result() for handle in handles] == ["A", "B", "C"]
        run = await rt.get(handles[0].id)
        assert run is not None
        assert (run.status, run.attempt, run.queue, run.starts_at) == ("completed", 1, "default", None)
    assert sorted(noted.begun) == ["a", "b", "c"]


async def test_whoever_waits_for_a_queued_run_never_takes_it_up(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    noted, store = Noted(), WatchedStore(make_store())
    async with make_runtime() as rt:
        handle = await rt.start(noted.flow, "a", id="r1", queue="mail")
        waiting = asyncio.ensure_future(handle.result())
        noted.gate.clear()
        async with make_runtime(store, **WORKER) as worker:
            worker.register(noted.flow)
            while not noted.begun:
                await asyncio.sleep(0.001)
            await kill(worker, store, clock)
        await until_status(rt, "r1", "interrupted")
        assert noted.begun == ["a"]
        noted.gate.set()
        async with make_runtime(**WORKER) as second:
            second.register(noted.flow)
            assert await waiting == "A"
    assert noted.begun == ["a", "a"]


async def test_a_queued_run_can_be_cancelled_before_anybody_takes_it(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    async with make_runtime() as rt:
        handle = await rt.start(noted.flow, "a", queue="mail")
        await handle.cancel("not needed")
        with pytest.raises(RunCancelledError, match="not needed"):
            await handle.result()


async def test_a_queued_run_can_be_run_here_by_name(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    async with make_runtime() as rt:
        await rt.start(noted.flow, "a", id="r1", delay=1000)
        assert await rt.run(noted.flow, "a", id="r1") == "A"


async def test_priority_goes_first_then_age(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    noted = Noted()
    async with make_runtime() as rt:
        for name, priority in (("old", 0), ("urgent", 9), ("young", 0), ("last", -5)):
            clock.advance(1)
            await rt.start(noted.flow, name, priority=priority)
        async with make_runtime(concurrency=1, **WORKER) as worker:
            worker.register(noted.flow)
            while len(noted.begun) < 4:
                await asyncio.sleep(0.001)
    assert noted.begun == ["urgent", "old", "young", "last"]


async def test_a_long_queue_does_not_keep_a_short_one_waiting(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    noted = Noted()
    async with make_runtime() as rt:
        for n in range(6):
            await rt.start(noted.flow, f"bulk-{n}", queue="bulk", priority=100)
        clock.advance(1)
        await rt.start(noted.flow, "mail", queue="mail")
        noted.gate.clear()
        async with make_runtime(concurrency=2, grace=0, **WORKER) as worker:
            worker.register(noted.flow)
            while len(noted.begun) < 2:
                await asyncio.sleep(0.001)
            assert "mail" in noted.begun


async def test_only_the_queues_that_a_worker_serves_are_taken(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    async with make_runtime() as rt, make_runtime(queues=["a", "b"], **WORKER) as worker:
        worker.register(noted.flow)
        other = await rt.start(noted.flow, "other", queue="c")
        for queue in "ab":
            assert await (await rt.start(noted.flow, queue, queue=queue)).result() == queue.upper()
        assert (await until_status(rt, other.id, "pending")).queue == "c"


async def test_a_delay_puts_the_start_off(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    noted = Noted()
    async with make_runtime() as rt, make_runtime(**WORKER) as worker:
        worker.register(noted.flow)
        late = await rt.start(noted.flow, "late", delay=timedelta(minutes=1))
        now = await rt.start(noted.flow, "now", delay=0)
        assert await now.result() == "NOW"
        run = await rt.get(late.id)
        assert run is not None
        assert run.starts_at is not None
        assert run.starts_at - run.created_at == timedelta(minutes=1)
        clock.advance(59)
        await worker._now().worker._look()
        assert noted.begun == ["now"]
        clock.advance(1)
        assert await late.result() == "LATE"


@pytest.mark.parametrize(("limit", "most"), [(2, 2), (RunLimit(per_key=1), 2), (RunLimit(total=3, per_key=2), 3)])
async def test_no_more_go_at_once_in_the_whole_fleet_than_the_flow_allows(
    make_runtime: MakeRuntime, make_store: MakeStore, limit: Any, most: int
) -> None:
    noted = Noted(limit=limit)
    async with AsyncExitStack() as stack:
        rt = await stack.enter_async_context(make_runtime())
        handles = [await rt.start(noted.flow, f"{n}", key="ab"[n % 2]) for n in range(12)]
        for _ in range(3):
            worker = await stack.enter_async_context(make_runtime(**WORKER))
            worker.register(noted.flow)
        assert sorted([await handle.result() for handle in handles]) == sorted(str(n) for n in range(12))
    assert noted.most <= most
    assert len(noted.begun) == 12


async def test_a_limit_stands_in_nobody_elses_way(make_runtime: MakeRuntime) -> None:
    slow, quick = Noted("slow", limit=1), Noted("quick")
    slow.gate.clear()
    async with make_runtime() as rt, make_runtime(grace=0, **WORKER) as worker:
        worker.register(slow.flow, quick.flow)
        for n in range(5):
            await rt.start(slow.flow, f"{n}", priority=9)
        handles = [await rt.start(quick.flow, f"{n}", priority=0) for n in range(3)]
        assert [await handle.result() for handle in handles] == ["0", "1", "2"]
        assert len(slow.begun) == 1


async def test_every_shape_takes_a_limit_and_refuses_a_wrong_one() -> None:
    def work(state: Any) -> Any:
        return state

    makers: list[Callable[[Any], Any]] = [
        lambda limit: Pipeline("p", [work], limit=limit),
        lambda limit: Graph("g", limit=limit),
        lambda limit: Team("t", [work], Strategy.SEQUENTIAL, limit=limit),
        lambda limit: Agent("a", work, limit=limit),
        lambda limit: flow(limit=limit)(work),
    ]
    for make in makers:
        assert make(3).limit == RunLimit(total=3)
        assert make(None).limit is None
        for wrong in (0, -1, True, "3", 2.0):
            with pytest.raises(UsageError, match="limit="):
                make(wrong)
    with pytest.raises(UsageError, match="per_key=0"):
        RunLimit(per_key=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": ""},
        {"queue": "a b"},
        {"queue": "a,b"},
        {"queue": 7},
        {"priority": 1.5},
        {"priority": True},
        {"priority": 2**15},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": 1e11},
        {"delay": "1"},
        {"delay": True},
        {"key": ""},
        {"key": "\ud800"},
        {"key": "a\0b"},
        {"key": 7},
    ],
)
async def test_what_makes_no_sense_for_a_queue_is_refused_before_anything_is_written(
    make_runtime: MakeRuntime, wrong: dict[str, Any]
) -> None:
    async with make_runtime() as rt:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            await rt.start(Noted().flow, "a", id="r1", **wrong)
        assert await rt.get("r1") is None


@pytest.mark.parametrize("queues", ["a", [], ["a,b"], [""]])
def test_queues_that_cannot_be_are_refused(queues: Any) -> None:
    with pytest.raises(UsageError, match="queue"):
        Runtime("memory:", queues=queues)


async def test_workers_are_listed_with_what_they_serve_and_what_they_hold(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    noted.gate.clear()
    worker = make_runtime(queues=["a", "b"], name="big one", concurrency=7, grace=0, **WORKER)
    worker.register(noted.flow)
    async with make_runtime() as rt, worker:
        await rt.start(noted.flow, "a", id="r1", queue="a")
        while not noted.begun:
            await asyncio.sleep(0.001)
        (found,) = await rt.workers()
        assert (found.name, found.alive, found.runs) == ("big one", True, ("r1",))
        assert (found.queues, found.flows, found.concurrency) == (("a", "b"), ("noted",), 7)
        assert [one.name for one in await worker.workers()] == ["big one"]


async def test_one_that_runs_only_its_own_is_listed_as_serving_nothing(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    noted.gate.clear()
    async with make_runtime(grace=0) as rt:
        await rt.start(noted.flow, "a", id="r1")
        (found,) = await rt.workers()
        assert (found.queues, found.flows, found.concurrency, found.runs) == ((), (), None, ("r1",))


async def test_a_run_whose_flow_no_worker_has_waits_for_one_that_has_it(
    make_runtime: MakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    noted, known = Noted(), Noted("known")
    async with make_runtime() as rt, make_runtime(**WORKER) as worker:
        worker.register(known.flow)
        handle = await rt.start(noted.flow, "a", queue="q")
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert await (await rt.start(known.flow, "b", queue="q")).result() == "B"
            while not any("'noted' is not registered" in record.message for record in caplog.records):
                await asyncio.sleep(0.001)
        assert (await until_status(rt, handle.id, "pending")).attempt == 1
        worker.register(noted.flow)
        assert await handle.result() == "A"


async def test_children_that_find_no_room_here_are_shared_with_the_fleet(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "STILL_FOR", 3600.0)  # the parent holds its place
    child = Noted("child")

    @flow
    async def parent() -> list[str]:
        children = [spawn(child.flow, f"{n}") for n in range(4)]
        return [await one for one in children]

    async with make_runtime() as rt, make_runtime(concurrency=1, **WORKER) as one:
        one.register(parent)
        child.gate.clear()
        handle = await rt.start(parent, queue="q", priority=4)
        while len(queued := [run async for run in rt.list(status="pending")]) < 3:
            await asyncio.sleep(0.001)
        assert {(run.queue, run.priority, run.parent) for run in queued} == {("q", 4, handle.id)}
        async with make_runtime(**WORKER) as two:
            two.register(child.flow, parent)
            while len(child.under_way) < 4:
                await asyncio.sleep(0.001)
            held = {worker.id: worker.runs for worker in await rt.workers()}
            assert sum(map(len, held.values())) >= 4
            assert all(held.values())
            child.gate.set()
            assert await handle.result() == ["0", "1", "2", "3"]
    assert sorted(child.begun) == ["0", "1", "2", "3"]


async def test_a_run_with_a_step_that_is_gone_is_not_tried_all_the_time(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    @step
    def other(state: str) -> str:
        return state

    noted, store = Noted(), WatchedStore(make_store())
    async with make_runtime() as rt:
        await rt.start(noted.flow, "a", id="r1", queue="q")
    changed = Pipeline("noted", [other])
    async with make_runtime(store, **WORKER) as worker:
        worker.register(changed)
        fences = set()
        for _ in range(6):
            await worker._now().worker._look()
            (head,) = await store.inner.read_heads(["r1"])
            assert head is not None
            fences.add(head.fence)
        run = await worker.get("r1")
        assert run is not None
        assert (run.status, run.attempt) == ("pending", 1)
        assert len(fences) <= 2  # both this test and the worker itself may have been the first to look


async def test_an_idle_worker_is_woken_and_does_not_wait_for_its_next_look(make_runtime: MakeRuntime) -> None:
    noted = Noted()
    async with make_runtime() as rt, make_runtime(recover=True) as worker:
        worker.register(noted.flow)
        worker._now().worker._poll = 1e6
        assert await (await rt.start(noted.flow, "a", queue="q")).result() == "A"
        looked = worker._now().worker.looked_at
        assert await (await rt.start(noted.flow, "b", queue="q")).result() == "B"
        assert worker._now().worker.looked_at != looked


async def test_a_claim_whose_reply_is_lost_leaves_no_run_with_somebody_who_does_not_drive_it(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker lives, so nobody else could take the run: it must find out by itself."""
    monkeypatch.setattr(custody, "_SURE", 0.02)
    noted, store = Noted(), WatchedStore(make_store())
    claim, lost = store.claim_runs, list[int]()

    async def claim_and_lose(query: Any, owner: str) -> Any:
        claims = await claim(query, owner)
        if claims and not lost:
            lost.append(len(claims))
            raise StoreUnavailableError("the connection is lost")
        return claims

    monkeypatch.setattr(store, "claim_runs", claim_and_lose)
    async with make_runtime() as rt, make_runtime(store, **WORKER) as worker:
        worker.register(noted.flow)
        assert await (await rt.start(noted.flow, "a", queue="q")).result() == "A"
    assert lost == [1]
    assert noted.begun == ["a"]


async def test_a_run_that_could_not_be_taken_up_because_the_store_was_away_is_tried_again_soon(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with it: it is not left alone as one that cannot be gone on with."""
    store, away = WatchedStore(make_store()), [True]
    read = store.read_entries

    async def read_entries(run: str, **which: Any) -> Any:
        if away:
            away.pop()
            raise StoreUnavailableError("the connection is lost")
        return await read(run, **which)

    monkeypatch.setattr(store, "read_entries", read_entries)
    kept = Pipeline("kept", [step(str.upper)], policy=CheckpointPolicy(keep_latest=1))
    async with make_runtime() as rt, make_runtime(store, **WORKER) as worker:
        worker.register(kept)
        handle = await rt.start(kept, "a", queue="q")
        async with asyncio.timeout(20):
            assert await handle.result() == "A"
    assert away == []


async def test_whoever_waits_for_a_queued_run_waits_through_an_outage_that_is_told_once(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "_LOOK_AGAIN", 0.005)
    noted, store = Noted(), WatchedStore(make_store())
    async with make_runtime(store) as rt, make_runtime(**WORKER) as worker:
        handle = await rt.start(noted.flow, "a", queue="q")
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
        with caplog.at_level(logging.WARNING, "holdfast"):
            store.severed = True
            worker.register(noted.flow)
            await until_status(worker, handle.id, "completed")
            while not caplog.records:
                await asyncio.sleep(0.001)
            assert not waiting.done()
            store.severed = False
            assert await waiting == "A"
    assert sum("result of run" in record.message and "out of reach" in record.message for record in caplog.records) == 1
