"""Rewind, fork, load, checkpoints, events: what can be known of a run, and going on from another place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Event, Pipeline, RetryPolicy, Runtime, step
from holdfast.errors import (
    NotACheckpointError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    RunPausedError,
    StepMissingError,
    UsageError,
)
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


def add(name: str) -> Any:
    return step(name=name)(lambda state: [*state, name])


FLOW = Pipeline("letters", [add("a"), add("b"), add("c")])


async def everything(rt: Runtime, run: str) -> tuple[Any, ...]:
    """All that a runtime tells of a run."""
    points = [point async for point in rt.checkpoints(run)]
    events = [event async for event in rt.events(run)]
    return await rt.get(run), points, events


# Looking


async def test_checkpoints_are_listed_and_loaded_with_state_and_place(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1", metadata={"caller": "u7"})
        points = [point async for point in rt.checkpoints("r1")]
        assert [(p.id, p.step, p.next, p.state) for p in points] == [
            ("r1@1", 0, "a", []),
            ("r1@2", 1, "b", ["a"]),
            ("r1@3", 2, "c", ["a", "b"]),
            ("r1@4", 3, None, ["a", "b", "c"]),
        ]
        assert [p.parent for p in points] == [None, "r1@1", "r1@2", "r1@3"]
        assert all(p.metadata == {"caller": "u7"} for p in points)
        assert [await rt.load(point.id) for point in points] == points
        assert await rt.load("r1") == points[-1]


async def test_what_is_not_there_is_none(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1")
        assert await rt.get("r2") is None
        assert await rt.load("r2") is None
        assert await rt.load("r2@1") is None
        assert await rt.load("r1@99") is None
        await rt.delete("r2")
        with pytest.raises(NotACheckpointError, match="the nearest is r1@4"):
            await rt.load("r1@5")
        for verb in (rt.rewind, rt.fork):
            with pytest.raises(NotACheckpointError, match="the nearest is r1@4"):
                await verb("r1@99")


async def test_a_loaded_state_is_a_copy(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1")
        point = await rt.load("r1@2")
        assert point is not None
        point.state.append("changed")
        again = await rt.load("r1@2")
    assert again is not None
    assert again.state == ["a"]


async def test_get_tells_where_a_run_stands(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def wait(state: Any) -> None:
        inside.set()
        await gate.wait()

    flow = Pipeline("stands", [add("a"), wait, add("c"), add("d")])
    async with make_runtime() as rt:
        handle = await rt.start(flow, [], id="r1", metadata={"n": 1}, parent="p1")
        await inside.wait()
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.step, run.next, run.progress) == ("running", 1, "wait", 25.0)
        assert (run.step_names, run.total_steps) == (("a", "wait", "c", "d"), 4)
        assert (run.metadata, run.parent, run.flow, run.error) == ({"n": 1}, "p1", "stands", None)
        assert (run.created_at.timestamp(), run.ended_at) == (clock.now(), None)
        clock.advance(5)
        gate.set()
        await handle.result()
        run = await rt.get("r1")
    assert run is not None
    assert (run.status, run.step, run.next, run.progress, run.owner) == ("completed", 4, None, 100.0, None)
    assert run.ended_at is not None
    assert run.started_at is not None
    assert (run.ended_at - run.started_at).total_seconds() == 5


# Rewind


async def test_a_rewind_deletes_nothing(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1")
        _, points, events = await everything(rt, "r1")
        assert await (await rt.rewind("r1@2")).result() == ["a", "b", "c"]
        _, points_after, events_after = await everything(rt, "r1")
    assert points_after[: len(points)] == points
    assert events_after[: len(events)] == events
    first = points_after[len(points)]
    assert (first.step, first.parent) == (1, "r1@2")
    assert events_after[len(events)].type == "rewound"


async def test_a_rewind_is_shown_to_whoever_watches(make_runtime: MakeRuntime) -> None:
    seen: list[Event] = []
    async with make_runtime(on_event=seen.append) as rt:
        await rt.run(FLOW, [], id="r1")
        seen.clear()
        await (await rt.rewind("r1@3")).result()
    assert "rewound" in [event.type for event in seen]


async def test_a_rewind_gives_the_step_all_its_attempts_again(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    attempts, failed = [], asyncio.Event()

    @step(retry=RetryPolicy(attempts=2, first_delay=1000))
    def shaky(state: Any) -> str:
        attempts.append(1)
        if len(attempts) in (1, 2):
            raise OSError("again")
        return "done"

    def on_event(event: Event) -> None:
        if event.type == "step_failed":
            failed.set()

    async with make_runtime(on_event=on_event, lease=1e9) as rt:
        handle = await rt.start(Pipeline("shaky", [shaky]), {}, id="r1")
        await failed.wait()
        await rt.pause("r1")
        with pytest.raises(RunPausedError):
            await handle.result()
        failed.clear()
        handle = await rt.rewind("r1@1")
        await failed.wait()
        clock.advance(2000)
        assert await handle.result() == "done"
    assert len(attempts) == 3


async def test_a_rewind_to_the_end_of_a_run_ends_it_again(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1")
        assert await (await rt.rewind("r1@4")).result() == ["a", "b", "c"]
        assert await (await rt.rewind("r1")).result() == ["a", "b", "c"]


async def test_resume_takes_no_checkpoint(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1")
        with pytest.raises(UsageError, match=r"rt\.rewind\('r1@2'\)"):
            await rt.resume("r1@2")


# Fork


async def test_a_fork_leaves_its_source_as_it_is(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1", metadata={"caller": "u7"})
        before = await everything(rt, "r1")
        same = await rt.fork("r1@2", id="r2")
        other = await rt.fork("r1@2", id="r3", state=["x"], metadata={"caller": "u8"})
        assert await same.result() == ["a", "b", "c"]
        assert await other.result() == ["x", "b", "c"]
        unnamed = await rt.fork("r1@3")
        assert unnamed.id.startswith("letters-")
        assert await everything(rt, "r1") == before
        run, points, _ = await everything(rt, "r2")
        assert (points[0].parent, points[0].step, run.metadata) == ("r1@2", 1, {"caller": "u7"})
        forked = await rt.get("r3")
        assert forked is not None
        assert forked.metadata == {"caller": "u8"}
        with pytest.raises(RunExistsError):
            await rt.fork("r1@2", id="r2")
        await rt.delete("r1")
        assert await rt.run(FLOW, id="r2") == ["a", "b", "c"]


async def test_a_fork_without_its_program_waits_for_one_that_has_it(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1")
    async with make_runtime() as stranger:
        await stranger.fork("r1@2", id="r2")
        run = await stranger.get("r2")
        assert run is not None
        assert run.status == "pending"
    async with make_runtime() as rt:
        rt.register(FLOW)
        (handle,) = await rt.recover()
        assert await handle.result() == ["a", "b", "c"]


# Events


async def test_events_can_be_read_from_any_place(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(FLOW, [], id="r1")
        events = [event async for event in rt.events("r1")]
        for place, event in enumerate(events):
            assert [e async for e in rt.events("r1", after=event)] == events[place + 1 :]
        assert [e async for e in rt.events("r1", after=3)] == [e for e in events if (e.seq or 0) > 3]
        assert [e async for e in rt.events("r1", after=10**9)] == []
        with pytest.raises(RunNotFoundError):
            [e async for e in rt.events("r2")]


async def test_following_sees_everything_once_and_ends_with_the_run(make_runtime: MakeRuntime) -> None:
    gate, inside = asyncio.Event(), asyncio.Event()

    async def wait(state: Any) -> None:
        inside.set()
        await gate.wait()

    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(Pipeline("follow", [add("a"), wait, add("c")]), [], id="r1")
        await inside.wait()

        async def follow() -> list[Event]:
            return [event async for event in other.events("r1", follow=True)]

        following = asyncio.ensure_future(follow())
        gate.set()
        await handle.result()
        seen = await following
        assert seen == [event async for event in rt.events("r1")]
    assert seen[-1].type == "completed"


async def test_a_reader_who_comes_back_after_a_restart_misses_nothing(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside, hangs = asyncio.Event(), [True]

    async def wait(state: Any) -> None:
        inside.set()
        if hangs:
            await asyncio.Event().wait()

    flow = Pipeline("follow", [add("a"), add("b"), wait, add("d")])
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(flow, [], id="r1")
        await inside.wait()
        seen = [event async for event in rt.events("r1")][:-2]  # the reader was in the middle of an entry
        await kill(rt, store, clock)
    hangs.clear()
    async with make_runtime() as rt:
        rt.register(flow)
        await rt.recover()
        seen += [event async for event in rt.events("r1", after=seen[-1], follow=True)]
        assert seen == [event async for event in rt.events("r1")]
    steps = [event.step for event in seen if event.type == "step_completed"]
    assert steps == ["a", "b", "wait", "d"]
    assert [event.type for event in seen].count("resumed") == 1


async def test_following_goes_on_through_a_restart_of_the_owner(make_runtime: MakeRuntime) -> None:
    inside, hangs = asyncio.Event(), [True]

    async def wait(state: Any) -> None:
        inside.set()
        if hangs:
            await asyncio.Event().wait()

    flow = Pipeline("follow", [add("a"), wait])
    async with make_runtime() as reader:
        async with make_runtime(grace=0) as rt:
            await rt.start(flow, [], id="r1")
            await inside.wait()

            async def follow() -> list[str]:
                return [event.type async for event in reader.events("r1", follow=True)]

            following = asyncio.ensure_future(follow())
        hangs.clear()
        async with make_runtime() as rt:
            await rt.run(flow, [], id="r1")
            types = await following
    assert types[-1] == "completed"
    assert "interrupted" in types


@pytest.mark.parametrize("error", [LookupError, SystemExit, KeyboardInterrupt])
async def test_what_on_event_does_wrong_is_not_the_run_s_fault(
    make_runtime: MakeRuntime, error: type[BaseException], caplog: Any
) -> None:
    seen: list[str] = []

    def broken(event: Event) -> None:
        seen.append(event.type)
        raise error("the watcher is broken")

    async def broken_later(event: Event) -> None:
        seen.append(event.type)
        await asyncio.sleep(0)
        raise error("the watcher is broken")

    for watcher in (broken, broken_later):
        async with make_runtime(on_event=watcher) as rt:
            run = watcher.__name__.replace("_", "-")
            assert await rt.run(FLOW, [], id=run) == ["a", "b", "c"]
    assert seen.count("completed") == 2
    assert caplog.text.count("the watcher is broken") >= 2


class BrokenHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise LookupError("the log is broken too")


async def test_a_log_that_cannot_be_written_to_is_not_the_run_s_fault_either(
    make_runtime: MakeRuntime, request: Any
) -> None:
    def broken(event: Event) -> None:
        raise LookupError("the watcher is broken")

    log, handler = logging.getLogger("holdfast"), BrokenHandler()
    log.addHandler(handler)
    request.addfinalizer(lambda: log.removeHandler(handler))
    async with make_runtime(on_event=broken) as rt:
        assert await rt.run(FLOW, [], id="r1") == ["a", "b", "c"]


# A checkpoint by hand


async def test_a_manual_checkpoint_is_made_at_the_next_safe_point(make_runtime: MakeRuntime) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def wait(state: list[str]) -> list[str]:
        inside.set()
        await gate.wait()
        return [*state, "waited"]

    steps = [add("a"), wait, add("c"), add("d")]
    flow = Pipeline("manual", steps, policy=CheckpointPolicy(every_n_steps=10))
    async with make_runtime() as rt:
        handle = await rt.start(flow, [], id="r1")
        await inside.wait()
        asked = asyncio.ensure_future(handle.checkpoint())
        for _ in range(5):
            await asyncio.sleep(0)
        gate.set()
        ref = await asked
        assert await handle.result() == ["a", "waited", "c", "d"]
        point = await rt.load(ref)
        assert point is not None
        assert point.step in (1, 2, 3, 4)
        assert await (await rt.fork(ref, id="r2")).result() == ["a", "waited", "c", "d"]


async def test_a_checkpoint_of_a_run_that_is_not_live_is_the_last_one(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(FLOW, [], id="r1")
        await handle.result()
        assert await handle.checkpoint() == "r1@4"


async def test_a_checkpoint_asked_for_in_the_queue_starts_nothing(make_runtime: MakeRuntime) -> None:
    inside, gate, calls = asyncio.Event(), asyncio.Event(), []

    async def wait(state: Any) -> None:
        calls.append(1)
        inside.set()
        await gate.wait()

    flow = Pipeline("queue", [wait])
    async with make_runtime(concurrency=1) as rt:
        await rt.start(flow, {}, id="r1")
        await inside.wait()
        handle = await rt.start(flow, {}, id="r2")
        ref = await handle.checkpoint()
        point, run = await rt.load(ref), await rt.get("r2")
        assert point is not None
        assert run is not None
        assert (point.step, run.status, calls) == (0, "pending", [1])
        gate.set()
        assert await handle.result() == {}


# A program that changed


async def stop_before_c(make_runtime: MakeRuntime) -> None:
    def broken(state: Any) -> None:
        raise LookupError("not yet")

    async with make_runtime() as rt:
        flow = Pipeline("letters", [add("a"), add("b"), step(name="c")(broken)])
        with pytest.raises(RunFailedError):
            await rt.run(flow, [], id="r1")


@pytest.mark.parametrize(
    ("names", "result"),
    [("abc", "abc"), ("axybc", "abc"), ("xabc", "abc"), ("bca", "abca"), ("abcd", "abcd"), ("c", "abc")],
)
async def test_a_run_finds_its_place_by_name_in_a_changed_program(
    make_runtime: MakeRuntime, names: str, result: str
) -> None:
    await stop_before_c(make_runtime)
    async with make_runtime() as rt:
        rt.register(Pipeline("letters", [add(name) for name in names]))
        assert await (await rt.resume("r1")).result() == list(result)


async def test_a_step_that_was_removed_is_a_clear_error_for_every_verb_that_would_run_it(
    make_runtime: MakeRuntime,
) -> None:
    await stop_before_c(make_runtime)
    async with make_runtime() as rt:
        rt.register(Pipeline("letters", [add("a"), add("b"), add("see")]))
        before = await rt.get("r1")
        for verb, ref in ((rt.resume, "r1"), (rt.rewind, "r1@3"), (rt.fork, "r1@3")):
            with pytest.raises(StepMissingError, match=r"'c'.*a, b, see"):
                await verb(ref)
        assert await rt.get("r1") == before
        assert [run.id async for run in rt.list()] == ["r1"]
        assert await (await rt.rewind("r1@2")).result() == ["a", "b", "see"]


# Without persistence


async def test_a_runtime_without_a_store_keeps_nothing(clock: ManualClock) -> None:
    seen: list[Event] = []

    def broken(state: Any) -> None:
        raise LookupError("broken")

    async with Runtime(None, clock=clock, on_event=seen.append) as rt:
        assert await rt.run(FLOW, [], id="r1") == ["a", "b", "c"]
        assert await rt.get("r1") is None
        assert [run async for run in rt.list()] == []
        handle = await rt.start(FLOW, [], id="r2")
        while await rt.get("r2") is not None:
            await asyncio.sleep(0)
        assert await handle.result() == ["a", "b", "c"]
        with pytest.raises(RunFailedError, match="broken"):
            await rt.run(Pipeline("broken", [broken]), {}, id="r3")
        assert await rt.get("r3") is None
        assert await rt.run(FLOW, ["again"], id="r1") == ["again", "a", "b", "c"]
    assert [event.type for event in seen].count("completed") == 3
