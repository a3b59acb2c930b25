"""When a checkpoint is saved, which ones are kept, and what a save that fails does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import CheckpointPolicy, End, Event, Pipeline, Runtime, step
from holdfast.errors import ResultExpiredError, RunFailedError, StoreUnavailableError, UsageError
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import WatchedStore

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]
LONG = {"lease": 1e9}


def counting(policy: CheckpointPolicy | None, total: int, each: Callable[[int], Any] = lambda number: None) -> Any:
    """A loop that counts its steps and does something in each."""

    async def advance(number: int, state: int) -> int:
        each(number)
        return state + 1

    return Pipeline("count", advance, total=total, policy=policy)


async def saved(rt: Runtime, run: str = "r1") -> list[int]:
    """The numbers of steps after which there is a checkpoint."""
    return [point.step async for point in rt.checkpoints(run)]


# When


async def test_without_a_policy_every_step_is_saved(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(counting(None, 4), 0, id="r1")
        assert await saved(rt) == [0, 1, 2, 3, 4]


async def test_every_n_steps_saves_those_and_the_last(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(counting(CheckpointPolicy(every_n_steps=3), 8), 0, id="r1")
        assert await saved(rt) == [0, 3, 6, 8]


@pytest.mark.parametrize("interval", [30, timedelta(seconds=30)])
async def test_an_interval_saves_at_30_seconds_and_not_at_29(
    make_runtime: MakeRuntime, clock: ManualClock, interval: Any
) -> None:
    seconds = [29, 1, 10, 19, 2, 40, 0]
    flow = counting(CheckpointPolicy(interval=interval), 7, lambda number: clock.advance(seconds[number]))
    async with make_runtime(**LONG) as rt:
        await rt.run(flow, 0, id="r1")
        assert await saved(rt) == [0, 2, 5, 6, 7]


async def test_on_complete_saves_after_the_steps_that_it_names(make_runtime: MakeRuntime) -> None:
    steps = [step(name=name)(lambda state: state + 1) for name in "abcd"]
    async with make_runtime() as rt:
        await rt.run(Pipeline("named", steps, policy=CheckpointPolicy(on_complete=["b"])), 0, id="r1")
        assert await saved(rt) == [0, 2, 4]


async def test_triggers_are_combined_with_or(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    policy = CheckpointPolicy(every_n_steps=4, interval=30)
    async with make_runtime(**LONG) as rt:
        await rt.run(counting(policy, 8, lambda number: clock.advance(60 if number == 1 else 0)), 0, id="r1")
        assert await saved(rt) == [0, 2, 6, 8]


async def test_a_throttle_leaves_out_saves_that_follow_too_soon(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    async with make_runtime(**LONG) as rt:
        flow = counting(CheckpointPolicy(throttle=10), 7, lambda number: clock.advance(4))
        await rt.run(flow, 0, id="r1")
        assert await saved(rt) == [0, 3, 6, 7]


async def test_a_failed_save_does_not_use_the_window_up(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())

    def each(number: int) -> None:
        clock.advance(4)
        store.refuse = lambda commit: number == 2 and bool(commit.entries)

    policy = CheckpointPolicy(throttle=10, on_save_error="warn")
    async with make_runtime(store, **LONG) as rt:
        await rt.run(counting(policy, 8, each), 0, id="r1")
        assert await saved(rt) == [0, 4, 7, 8]


async def test_a_throttle_never_drops_a_pause_or_a_failure(make_runtime: MakeRuntime) -> None:
    def broken(number: int) -> None:
        if number == 3:
            raise LookupError("broken")

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(counting(CheckpointPolicy(throttle=1000), 9, broken), 0, id="r1")
        point = await rt.load("r1")
    assert point is not None
    assert (point.step, point.state) == (3, 3)


async def test_the_runtime_has_a_policy_for_flows_without_one(make_runtime: MakeRuntime) -> None:
    async with make_runtime(policy=CheckpointPolicy(every_n_steps=2)) as rt:
        await rt.run(counting(None, 4), 0, id="r1")
        await rt.run(counting(CheckpointPolicy(every_n_steps=3), 4), 0, id="r2")
        assert await saved(rt, "r1") == [0, 2, 4]
        assert await saved(rt, "r2") == [0, 3, 4]


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_n_steps": 0},
        {"keep_latest": 0},
        {"interval": -1},
        {"ttl": timedelta(days=-1)},
        {"on_complete": "abc"},
        {"on_finish": "burn"},
        {"on_save_error": "ignore"},
    ],
)
def test_a_policy_that_cannot_be_is_refused_when_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        CheckpointPolicy(**wrong)


# What it costs, and what is seen of it


async def test_five_steps_cost_one_write_each_and_one_for_the_start(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.run(counting(None, 5), 0, id="r1")
        assert store.commits == 6


async def test_a_hundred_runs_at_once_share_their_writes(make_runtime: MakeRuntime, make_store: MakeStore) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        results = await asyncio.gather(*(rt.run(counting(None, 5), 0, id=f"r{n}") for n in range(100)))
    assert results == [5] * 100
    assert sum(len(batch) for batch in store.batches) == 600
    assert store.commits < 100


async def test_the_events_of_a_skipped_step_travel_with_the_next_checkpoint(make_runtime: MakeRuntime) -> None:
    live: list[Event] = []
    async with make_runtime(on_event=live.append) as rt:
        await rt.run(counting(CheckpointPolicy(every_n_steps=2), 3), 0, id="r1")
        stored = [event async for event in rt.events("r1")]
    one = ["step_started", "step_completed"]
    assert [event.type for event in stored] == [
        "created",
        *one,
        *one,
        "checkpointed",
        *one,
        "checkpointed",
        "completed",
    ]
    assert [event.type for event in live] == [event.type for event in stored]
    assert all(event.seq is not None for event in stored)
    assert [event.seq for event in live if event.type == "step_completed"] == [None, 2, 3]


async def test_nothing_is_shown_twice_when_a_run_leaves_with_unsaved_steps(make_runtime: MakeRuntime) -> None:
    live: list[Event] = []

    def broken(number: int) -> None:
        if number == 3:
            raise LookupError("broken")

    async with make_runtime(on_event=live.append) as rt:
        with pytest.raises(RunFailedError):
            await rt.run(counting(CheckpointPolicy(every_n_steps=10), 9, broken), 0, id="r1")
        stored = [event.type async for event in rt.events("r1")]
    assert stored.count("step_completed") == 3
    assert [event.type for event in live].count("step_completed") == 3
    assert [event.type for event in live].count("checkpointed") == 1


async def test_a_step_says_when_it_began_and_ended_whenever_it_is_saved(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    began = clock.now()

    def passes(number: int) -> None:
        clock.advance([1, 2, 4, 8, 16][number])
        if number == 4:
            raise LookupError("broken")

    async with make_runtime(**LONG) as rt:
        with pytest.raises(RunFailedError):
            await rt.run(counting(CheckpointPolicy(every_n_steps=3), 9, passes), 0, id="r1")
        events = [event async for event in rt.events("r1")]
    # The third was saved as it ended, the fourth when the fifth had failed.
    started = [event.time.timestamp() - began for event in events if event.type == "step_started"]
    ended = [event.time.timestamp() - began for event in events if event.type == "step_completed"]
    assert (started, ended) == ([0, 1, 3, 7, 15], [1, 3, 7, 15])


async def test_checkpointed_is_shown_after_the_commit(make_runtime: MakeRuntime, make_store: MakeStore) -> None:
    store = WatchedStore(make_store())
    commits_when_seen: list[int] = []

    def on_event(event: Event) -> None:
        if event.type == "checkpointed":
            commits_when_seen.append(store.commits)

    async with make_runtime(store, on_event=on_event) as rt:
        await rt.run(counting(None, 3), 0, id="r1")
    assert commits_when_seen == [2, 3, 4]


# A save that fails


async def test_a_failing_save_stops_the_run_at_its_last_good_step(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())

    def each(number: int) -> None:
        store.refuse = lambda commit: number == 2 and bool(commit.entries)

    async with make_runtime(store) as rt:
        with pytest.raises(StoreUnavailableError):
            await rt.run(counting(None, 5, each), 0, id="r1")
        store.refuse = lambda commit: False
        point = await rt.load("r1")
        assert point is not None
        assert (point.step, point.state) == (2, 2)
        assert await rt.run(counting(None, 5), 0, id="r1") == 5


async def test_a_failing_save_may_be_a_warning_and_the_next_one_saves_both(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store, live = WatchedStore(make_store()), []

    def each(number: int) -> None:
        store.refuse = lambda commit: number == 1 and bool(commit.entries)

    async with make_runtime(store, on_event=live.append) as rt:
        assert await rt.run(counting(CheckpointPolicy(on_save_error="warn"), 3, each), 0, id="r1") == 3
        assert await saved(rt) == [0, 1, 3]
        stored = [event.type async for event in rt.events("r1")]
    assert stored.count("step_completed") == 3
    types = [event.type for event in live]
    assert (types.count("step_completed"), types.count("save_failed")) == (3, 1)


# What is kept


async def test_keep_latest_leaves_exactly_three_at_any_time(make_runtime: MakeRuntime) -> None:
    seen: list[list[int]] = []
    gate: asyncio.Queue[None] = asyncio.Queue()
    here: asyncio.Queue[None] = asyncio.Queue()

    async def advance(number: int, state: dict[str, Any]) -> dict[str, Any]:
        here.put_nowait(None)
        await gate.get()
        return {"n": number, "text": "x" * 3000 + str(number)}

    flow = Pipeline("keep", advance, total=12, policy=CheckpointPolicy(keep_latest=3))
    async with make_runtime() as rt:
        handle = await rt.start(flow, {}, id="r1")
        for _ in range(12):
            await here.get()
            points = [point async for point in rt.checkpoints("r1")]
            for point in points:
                assert await rt.load(point.id) == point
            seen.append([point.step for point in points])
            gate.put_nowait(None)
        await handle.result()
        seen.append(await saved(rt))
    assert seen == [list(range(max(0, n - 2), n + 1)) for n in range(13)]


async def test_keep_latest_still_holds_after_restarts_and_a_rewind(make_runtime: MakeRuntime) -> None:
    inside, stop_at = asyncio.Event(), [0]

    async def advance(number: int, state: dict[str, Any]) -> dict[str, Any]:
        if number in stop_at:
            inside.set()
            await asyncio.Event().wait()
        return {"n": number, "text": str(number) * 20_000}

    flow = Pipeline("keep", advance, total=10, policy=CheckpointPolicy(keep_latest=3))
    for stop in range(2, 8):
        stop_at[:] = [stop]
        inside.clear()
        async with make_runtime(grace=0) as rt:
            rt.register(flow)
            if not await rt.recover():
                await rt.start(flow, {}, id="r1")
            await inside.wait()
            assert await saved(rt) == [stop - 2, stop - 1, stop]
            await rt.close()
    stop_at.clear()
    async with make_runtime() as rt:
        await rt.run(flow, {}, id="r1")
        points = [point async for point in rt.checkpoints("r1")]
        assert [point.step for point in points] == [8, 9, 10]
        await (await rt.rewind(points[0].id)).result()
        assert await saved(rt) == [8, 9, 10]


async def test_what_is_kept_takes_a_bounded_place(make_runtime: MakeRuntime, make_store: MakeStore) -> None:
    async def advance(number: int, state: str) -> str:
        return str(number % 10) * 2000

    flow = Pipeline("bounded", advance, total=100, policy=CheckpointPolicy(keep_latest=3))
    store = make_store()
    async with make_runtime() as rt:
        await rt.run(flow, "", id="r1")
        await store.open()
        entries = await store.read_entries("r1")
        await store.close()
    assert sum(len(entry.body) for entry in entries) < 30_000


async def test_ttl_hides_checkpoints_as_a_run_goes_on(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    async with make_runtime(**LONG) as rt:
        flow = counting(CheckpointPolicy(ttl=25), 6, lambda number: clock.advance(10))
        await rt.run(flow, 0, id="r1")
        assert await saved(rt) == [4, 5, 6]


async def test_prune_removes_what_has_expired_and_keeps_the_head(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    flow = counting(CheckpointPolicy(ttl=3600), 3)
    async with make_runtime(**LONG) as rt:
        await rt.run(flow, 0, id="r1")
        assert await rt.prune() == 0
        clock.advance(3600)
        assert await rt.prune() == 1
        assert await rt.prune() == 0
        assert await saved(rt) == []
        assert await rt.load("r1") is None
        with pytest.raises(ResultExpiredError):
            await rt.run(flow, 0, id="r1")
        run = await rt.get("r1")
    assert run is not None
    assert run.status == "completed"


async def test_a_failed_run_whose_history_expired_says_so_when_it_is_resumed(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    def broken(number: int) -> None:
        raise LookupError("broken")

    flow = counting(CheckpointPolicy(ttl=60), 3, broken)
    async with make_runtime(**LONG) as rt:
        with pytest.raises(RunFailedError):
            await rt.run(flow, 0, id="r1")
        clock.advance(60)
        assert await rt.prune() == 1
        with pytest.raises(ResultExpiredError):
            await rt.resume("r1")
        with pytest.raises(RunFailedError, match="broken"):
            await rt.run(flow, 0, id="r1")


async def test_prune_never_drops_the_last_checkpoint_of_an_unfinished_run(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    inside, hangs = asyncio.Event(), [True]

    async def advance(number: int, state: int) -> int:
        if number == 3 and hangs:
            inside.set()
            await asyncio.Event().wait()
        return state + 1

    flow = Pipeline("unfinished", advance, total=5, policy=CheckpointPolicy(ttl=60))
    async with make_runtime(grace=0, **LONG) as rt:
        await rt.start(flow, 0, id="r1")
        await inside.wait()
        await rt.close()
    hangs.clear()
    clock.advance(3600)
    async with make_runtime(**LONG) as rt:
        await rt.prune()
        assert await saved(rt) == [3]
        assert await rt.run(flow, 0, id="r1") == 5


async def test_opening_a_store_cleans_up(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    async with make_runtime(**LONG) as rt:
        await rt.run(counting(CheckpointPolicy(ttl=60), 3), 0, id="r1")
    clock.advance(60)
    async with make_runtime(**LONG) as rt:
        for _ in range(1000):
            if await rt.load("r1") is None:
                break
            await asyncio.sleep(0)
        assert await saved(rt) == []


# When a run has finished


@pytest.mark.parametrize("on_finish", ["delete", "delete_on_success"])
@pytest.mark.parametrize("ends_early", [False, True])
async def test_deleting_at_the_end_keeps_the_result_and_runs_nothing_again(
    make_runtime: MakeRuntime, on_finish: Any, ends_early: bool
) -> None:
    calls: list[int] = []

    def advance(number: int, state: int) -> Any:
        calls.append(number)
        return End("early") if ends_early and number == 2 else state + 1

    flow = Pipeline("finish", advance, total=4, policy=CheckpointPolicy(on_finish=on_finish))
    expected = "early" if ends_early else 4
    async with make_runtime() as rt:
        assert await rt.run(flow, 0, id="r1") == expected
        assert len(await saved(rt)) == 1
    done = list(calls)
    async with make_runtime() as rt:
        assert await rt.run(flow, 0, id="r1") == expected
        run = await rt.get("r1")
    assert calls == done
    assert run is not None
    assert run.status == "completed"


@pytest.mark.parametrize(("on_finish", "kept"), [("keep", 3), ("delete", 1), ("delete_on_success", 3)])
async def test_what_a_failed_run_keeps_is_enough_to_resume_it(
    make_runtime: MakeRuntime, on_finish: Any, kept: int
) -> None:
    broken = [True]

    def each(number: int) -> None:
        if number == 2 and broken:
            raise LookupError("broken")

    flow = counting(CheckpointPolicy(on_finish=on_finish), 4, each)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(flow, 0, id="r1")
        assert len(await saved(rt)) == kept
        broken.clear()
        assert await (await rt.resume("r1")).result() == 4
