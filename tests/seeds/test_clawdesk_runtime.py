"""What clawdesk-runtime promises, in Holdfast: durable tasks with checkpoints, leases and a dead-letter list."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Event, Pipeline, RetryPolicy, Runtime, step
from holdfast.errors import OwnershipLostError, RunFailedError, RunOwnedError
from holdfast.model import Commit, Query, Refusal
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from holdfast.testing.build import ALICE, BOB, create, entry, owner
from watched import LEASE, WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


def research(calls: list[int] | None = None, stop_at: int | None = None, inside: asyncio.Event | None = None) -> Any:
    """The task of the original's example: one function of (step, state)."""

    async def advance(number: int, state: dict[str, Any]) -> dict[str, Any]:
        if calls is not None:
            calls.append(number)
        if number == stop_at:
            assert inside is not None
            inside.set()
            await asyncio.Event().wait()
        return {**state, "last": number}

    return Pipeline("research-task", advance, total=5)


async def test_save_then_load_keeps_step_and_state(make_runtime: MakeRuntime) -> None:
    inside = asyncio.Event()
    async with make_runtime(grace=0) as rt:
        await rt.start(research(stop_at=2, inside=inside), {"topic": "tides"}, id="t1", metadata={"k": 1})
        await inside.wait()
    async with make_runtime() as rt:
        point = await rt.load("t1")
    assert point is not None
    assert (point.run, point.step, point.state) == ("t1", 2, {"topic": "tides", "last": 1})
    assert point.metadata == {"k": 1}


async def test_five_saves_the_latest_loads_and_all_five_are_listed(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(research(), {}, id="t1")
        point = await rt.load("t1")
        assert point is not None
        assert (point.step, point.state) == (5, {"last": 4})
        saved = [p.step async for p in rt.checkpoints("t1")]
    assert saved == [0, 1, 2, 3, 4, 5]  # the start, and one for each step


async def test_a_missing_run_is_none(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        assert await rt.load("t1") is None
        assert await rt.get("t1") is None


async def test_a_second_worker_is_a_conflict(make_runtime: MakeRuntime) -> None:
    inside, calls = asyncio.Event(), list[int]()
    flow = research(calls, 2, inside)
    async with make_runtime(grace=0) as rt, make_runtime() as other:
        await rt.start(flow, {}, id="t1")
        await inside.wait()
        other.register(flow)
        with pytest.raises(RunOwnedError):
            await other.resume("t1")
        assert await other.recover() == []
    assert calls == [0, 1, 2]


async def test_a_wrong_fence_is_stale_and_nothing_is_written(make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    store.beat(owner(ALICE), LEASE)
    await store.commit([create("t1")])
    before = await store.read_heads(["t1"]), await store.read_entries("t1")
    for fence in (0, 2, 99):
        (reply,) = await store.commit([Commit(run="t1", owner=ALICE, fence=fence, entries=(entry(2, fence=fence),))])
        assert reply.refused is Refusal.STALE
    assert (await store.read_heads(["t1"]), await store.read_entries("t1")) == before
    await store.close()


async def test_a_worker_that_lost_its_lease_is_told_and_its_write_is_refused(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    inside, gate, first = asyncio.Event(), asyncio.Event(), [True]

    async def slow(state: Any) -> str:
        if first and first.pop():
            inside.set()
            await gate.wait()
            return "of the first worker"
        return "of the second worker"

    flow = Pipeline("slow", [slow])
    async with make_runtime(heartbeat=14.9) as rt, make_runtime() as other:
        handle = asyncio.ensure_future(rt.run(flow, {}, id="t1"))
        await inside.wait()
        clock.advance(LEASE + 1)
        assert await other.run(flow, {}, id="t1") == "of the second worker"
        gate.set()
        with pytest.raises(OwnershipLostError):
            await handle
        assert await rt.run(flow, {}, id="t1") == "of the second worker"


async def test_renewing_keeps_the_fence_and_extends_the_lease(make_store: MakeStore, clock: ManualClock) -> None:
    store = make_store()
    await store.open()
    store.beat(owner(ALICE), LEASE)
    store.beat(owner(BOB), 1000.0)
    await store.commit([create("t1")])
    clock.advance(LEASE - 1)
    store.beat(owner(ALICE), LEASE)
    clock.advance(LEASE - 1)
    (head,) = await store.read_heads(["t1"])
    assert head is not None
    assert (head.fence, head.owned) == (1, True)
    assert await store.claim_runs(Query(ids=("t1",)), BOB) == []
    clock.advance(2)
    (claim,) = await store.claim_runs(Query(ids=("t1",)), BOB)
    assert claim.head.fence == 2
    await store.close()


async def test_fences_do_not_begin_again_with_a_new_process(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    fences = []
    for _ in range(3):
        inside, store = asyncio.Event(), WatchedStore(make_store())
        async with make_runtime(store) as rt:
            rt.register(research(stop_at=2, inside=inside))
            if not await rt.recover():
                await rt.start(research(stop_at=2, inside=inside), {}, id="t1")
            await inside.wait()
            (head,) = await store.read_heads(["t1"])
            assert head is not None
            fences.append(head.fence)
            await kill(rt, store, clock)
    assert fences == [1, 2, 3]


async def test_backoff_grows_and_is_capped(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    waits: list[float] = []

    def on_event(event: Event) -> None:
        if event.type == "step_failed" and "retry_at" in event.data:
            waits.append(event.data["retry_at"] - clock.now())
            clock.advance(waits[-1])

    @step(retry=RetryPolicy(attempts=6, first_delay=1, factor=3, max_delay=20, jitter=0))
    def broken(state: Any) -> None:
        raise ConnectionError("down")

    async with make_runtime(on_event=on_event, lease=1e9) as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Pipeline("broken", [broken]), {}, id="t1")
    assert waits == [1, 3, 9, 20, 20]


async def test_an_error_class_marked_not_retryable_is_not_retried(make_runtime: MakeRuntime) -> None:
    calls: list[int] = []

    @step(retry=RetryPolicy(attempts=9, never=(PermissionError,)))
    def forbidden(state: Any) -> None:
        calls.append(1)
        raise PermissionError("no")

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="PermissionError"):
            await rt.run(Pipeline("forbidden", [forbidden]), {}, id="t1")
    assert calls == [1]


async def test_a_run_over_its_attempt_cap_is_failed_with_its_reason_and_can_be_retried(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    for _ in range(2):
        inside, store = asyncio.Event(), WatchedStore(make_store())
        async with make_runtime(store, crash_limit=2) as rt:
            rt.register(research(stop_at=1, inside=inside))
            if not await rt.recover():
                await rt.start(research(stop_at=1, inside=inside), {}, id="t1")
            await inside.wait()
            await kill(rt, store, clock)
    calls: list[int] = []
    async with make_runtime(crash_limit=2) as rt:
        rt.register(research(calls))
        await rt.recover()
        (dead,) = [run async for run in rt.list(status="failed")]
        assert dead.id == "t1"
        assert dead.error is not None
        assert "2 crashes" in dead.error
        await (await rt.resume("t1")).result()
    assert calls == [1, 2, 3, 4]  # the failed step is not skipped


async def test_recovery_finds_runs_whose_lease_expires_after_boot_too(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside, store, calls = asyncio.Event(), WatchedStore(make_store()), list[int]()
    async with make_runtime(recover=True, heartbeat=0.01) as rt:
        rt.register(research(calls))
        async with make_runtime(store) as dying:
            await dying.start(research(stop_at=3, inside=inside), {}, id="t1")
            await inside.wait()
            await kill(dying, store, clock)
        last = [event async for event in rt.events("t1", follow=True)][-1]
    assert last.type == "completed"
    assert calls == [3, 4]


@pytest.mark.parametrize(("seconds", "saves"), [(29, [0, 5]), (30, [0, 1, 2, 3, 4, 5])])
async def test_an_interval_of_30_s_saves_at_30_and_not_at_29(
    make_runtime: MakeRuntime, clock: ManualClock, seconds: int, saves: list[int]
) -> None:
    def advance(number: int, state: int) -> int:
        clock.advance(seconds if number == 0 or seconds == 30 else 0)
        return state + 1

    flow = Pipeline("interval", advance, total=5, policy=CheckpointPolicy(interval=30))
    async with make_runtime(lease=1e9) as rt:
        await rt.run(flow, 0, id="t1")
        assert [p.step async for p in rt.checkpoints("t1")] == saves


async def test_a_crash_in_the_middle_does_not_start_over(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside, store, calls = asyncio.Event(), WatchedStore(make_store()), list[int]()
    async with make_runtime(store) as rt:
        await rt.start(research(calls, 3, inside), {}, id="t1")
        await inside.wait()
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        assert await rt.run(research(calls), {}, id="t1") == {"last": 4}
    assert calls == [0, 1, 2, 3, 3, 4]


async def test_a_list_by_status_shows_no_stale_rows(make_runtime: MakeRuntime) -> None:
    inside = asyncio.Event()
    async with make_runtime(grace=0) as rt:
        await rt.start(research(stop_at=1, inside=inside), {}, id="t1")
        await inside.wait()
        assert [run.id async for run in rt.list(status="running")] == ["t1"]
        assert [run.id async for run in rt.list(status="interrupted")] == []
    async with make_runtime() as rt:
        assert [run.id async for run in rt.list(status="running")] == []
        assert [run.id async for run in rt.list(status="interrupted")] == ["t1"]
        await rt.run(research(), {}, id="t1")
        assert [run.id async for run in rt.list(status=["running", "interrupted"])] == []
        assert [run.id async for run in rt.list(status="completed")] == ["t1"]
