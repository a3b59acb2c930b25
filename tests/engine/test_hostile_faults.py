"""Replies that are lost, clocks that are set back, callers that keep what they gave: nothing is written wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import Agent, CheckpointPolicy, Pipeline, RetryPolicy, Runtime, step
from holdfast.errors import RunFailedError, RunInterruptedError, StoreError, StoreUnavailableError
from holdfast.model import Commit, Event, Reply
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock, ScriptedModel, wants
from watched import WatchedStore

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class UnsureStore(WatchedStore):
    """Says of some commits that they failed; only some of those did."""

    def __init__(self, inner: Store, fates: dict[int, str]) -> None:
        super().__init__(inner)
        self.fates, self.seen = fates, 0
        """What becomes of the n-th commit that holds a checkpoint: "lost" was not written, "unheard" was."""

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        return None

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        if not any(entry.kind == "checkpoint" for commit in batch for entry in commit.entries):
            return await super().commit(batch)
        self.seen += 1
        fate = self.fates.get(self.seen)
        if fate != "lost":
            replies = await super().commit(batch)
        if fate is not None:
            raise StoreUnavailableError(f"the commit was {fate}")
        return replies


@pytest.mark.parametrize(
    "fates",
    [
        {2: "unheard"},
        {2: "lost", 3: "unheard"},
        {2: "unheard", 3: "unheard"},
        {2: "lost", 3: "unheard", 4: "lost", 5: "unheard"},
        {6: "unheard"},
    ],
)
async def test_what_was_written_unheard_is_gone_on_from_as_it_stands(
    make_runtime: MakeRuntime, make_store: MakeStore, fates: dict[int, str]
) -> None:
    def advance(number: int, state: dict[str, Any]) -> None:
        state["log"].append(f"step {number}")
        state[f"only {number % 2}"] = number

    expected: dict[str, Any] = {"log": []}
    for number in range(8):
        advance(number, expected)
    flow = Pipeline("unsure", advance, total=8, policy=CheckpointPolicy(on_save_error="warn"))
    async with make_runtime(UnsureStore(make_store(), fates)) as rt:
        assert await rt.run(flow, {"log": []}, id="r1") == expected
    async with make_runtime() as rt:
        rt.register(flow)
        assert [problem async for problem in rt.doctor()] == []
        for checkpoint in [found async for found in rt.checkpoints("r1")]:
            assert checkpoint.state["log"] == [f"step {number}" for number in range(checkpoint.step)]
        assert await rt.run(flow, id="r1") == expected
        done = [event async for event in rt.events("r1") if event.type == "step_completed"]
        assert len(done) == 8


@pytest.mark.parametrize(
    "fates",
    [
        {2: "unheard"},
        {2: "unheard", 3: "lost"},
        {2: "unheard", 3: "unheard"},
        {3: "unheard", 4: "lost", 5: "lost"},
        {2: "lost", 3: "unheard", 5: "unheard"},
    ],
)
async def test_what_was_written_unheard_is_not_appended_to_a_transcript_again(
    make_runtime: MakeRuntime, make_store: MakeStore, fates: dict[int, str]
) -> None:
    def search(n: int) -> str:
        return f"found {n}"

    model = ScriptedModel([*(wants("search", id=f"c{n}", n=n) for n in range(6)), "done"])
    agent = Agent("unsure", model, [search], policy=CheckpointPolicy(on_save_error="warn"))
    async with make_runtime(UnsureStore(make_store(), fates)) as rt:
        live = await rt.run(agent, "go", id="r1")
    async with make_runtime() as rt:
        stored = await rt.load("r1")
        assert stored is not None
        assert stored.state == live
        assert [problem async for problem in rt.doctor()] == []


@pytest.mark.parametrize("fates", [{1: "unheard", 2: "lost"}, {1: "unheard", 2: "lost", 3: "unheard", 4: "lost"}])
async def test_a_step_that_was_saved_unheard_is_told_of_once(
    make_runtime: MakeRuntime, make_store: MakeStore, fates: dict[int, str]
) -> None:
    shown: list[Event] = []
    names = [f"step {number}" for number in range(8)]
    steps = [step(name=name)(lambda state: None) for name in names]
    flow = Pipeline("told", steps, policy=CheckpointPolicy(on_save_error="warn"))
    async with make_runtime(UnsureStore(make_store(), fates), on_event=shown.append) as rt:
        await rt.run(flow, {}, id="r1")
        stored = [event async for event in rt.events("r1")]
    for told in (stored, shown):
        assert [event.step for event in told if event.type == "step_completed"] == names


async def test_what_the_caller_does_to_a_raw_state_after_the_fork_changes_nothing(make_runtime: MakeRuntime) -> None:
    gate, inside = asyncio.Event(), asyncio.Event()

    async def first(state: dict[str, Any]) -> None:
        inside.set()
        await gate.wait()
        state["seen"] = True

    flow = Pipeline("forked", [first, lambda state: None])
    raw: dict[str, Any] = {"texts": ["a", "b"]}
    async with make_runtime() as rt:
        gate.set()
        await rt.run(flow, {}, id="source")
        gate.clear()
        inside.clear()
        handle = await rt.fork("source@1", id="copy", state=raw, raw=True)
        await inside.wait()
        raw["texts"].append("c")
        raw["more"] = 1
        gate.set()
        assert await handle.result() == {"texts": ["a", "b"], "seen": True}
        assert (await rt.load("copy")).state == {"texts": ["a", "b"], "seen": True}  # type: ignore[union-attr]
        assert [problem async for problem in rt.doctor()] == []


async def test_a_clock_that_is_set_back_does_not_put_saving_off(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    def advance(number: int, state: int) -> int:
        if number == 1:
            clock.advance(-3600)
        return state + 1

    flow = Pipeline("timed", advance, total=4, policy=CheckpointPolicy(interval=10))
    async with make_runtime() as rt:
        await rt.run(flow, 0, id="r1")
        assert [checkpoint.step async for checkpoint in rt.checkpoints("r1")] == [0, 2, 4]


async def test_a_retry_policy_that_grows_beyond_all_numbers_waits_its_longest(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    policy, tries = RetryPolicy(attempts=70, first_delay=1e10, factor=1e300, max_delay=0.0), []

    @step(retry=policy)
    async def flaky(state: Any) -> None:
        tries.append(1)
        raise LookupError

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(Pipeline("flaky", [flaky]), {}, id="r1")
    assert len(tries) == 70


async def cancel_and_wait(state: Any) -> None:
    cancel_own_task()
    await asyncio.Event().wait()


async def cancel_and_return(state: Any) -> str:
    cancel_own_task()
    return "too late"


async def wait_for_what_is_cancelled(state: Any) -> None:
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(waiting.cancel)
    await waiting


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("fn", [cancel_and_wait, cancel_and_return, wait_for_what_is_cancelled])
async def test_a_step_that_cancels_itself_fails_its_run_and_nothing_else(
    make_runtime: MakeRuntime, fn: Any, timeout: float | None
) -> None:
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="the step was cancelled from inside"):
            await rt.run(Pipeline("cancelling", [step(timeout=timeout)(fn)]), {}, id="r1")
        assert [run.status async for run in rt.list()] == ["failed"]
        assert await rt.run(Pipeline("fine", [lambda state: "fine"]), {}, id="r2") == "fine"


def test_the_end_of_the_loop_fails_no_run(clock: ManualClock) -> None:
    store, inside = MemoryStore(clock), []

    async def hang(state: Any) -> None:
        inside.append(1)
        await asyncio.Event().wait()

    async def begin() -> Runtime:
        rt = Runtime(store, clock=clock)
        await rt.__aenter__()
        await rt.start(Pipeline("hanging", [hang]), {}, id="r1")
        while not inside:
            await asyncio.sleep(0)
        return rt  # and asyncio.run cancels all that is left

    async def look() -> Any:
        return (await store.read_heads(["r1"]))[0]

    forgotten = asyncio.run(begin())
    assert asyncio.run(look()).status == "running"  # its owner is gone, and whoever looks goes on with it
    del forgotten


async def test_a_watcher_that_is_cancelled_does_not_stop_the_run(make_runtime: MakeRuntime) -> None:
    def watch(event: Event) -> None:
        raise asyncio.CancelledError

    async with make_runtime(on_event=watch) as rt:
        assert await rt.run(Pipeline("watched", [lambda state: state + 1, lambda state: state + 1]), 0) == 2


async def test_who_follows_the_events_of_a_run_is_told_when_the_runtime_closes(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    inside = asyncio.Event()

    async def wait(state: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    store = WatchedStore(make_store())
    async with make_runtime() as other, make_runtime(store) as rt:
        await other.start(Pipeline("followed", [wait]), {}, id="r1")
        await inside.wait()
        seen: list[str] = []

        async def watch() -> None:
            async for event in rt.events("r1", follow=True):
                seen.append(event.type)

        watching = asyncio.ensure_future(watch())
        while not seen:
            await asyncio.sleep(0)
        await rt.close()
        store.touched = False
        with pytest.raises(RunInterruptedError):
            await watching
        assert not store.touched
        await asyncio.gather(other.close(), other.close())


async def test_a_store_that_is_closed_stays_so(tmp_path: Any) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.wait_change(0, 0.0)
    with pytest.raises(StoreError, match="not open"):
        store.try_commit([])
    await store.open()
    assert await store.read_heads(["r1"]) == [None]
    await store.close()


async def test_what_a_ttl_has_shortened_is_sound(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def advance(number: int, state: list[int]) -> list[int]:
        if number == 3:
            inside.set()
            await gate.wait()
        return [*state, number]

    flow = Pipeline("short", advance, total=6, policy=CheckpointPolicy(ttl=100))
    async with make_runtime() as rt:
        handle = await rt.start(flow, [], id="r1")
        await inside.wait()
        await handle.pause()
        gate.set()
        with pytest.raises(Exception, match="paused"):
            await handle.result()
        clock.advance(1000)
        assert await rt.prune() == 1
        assert [problem async for problem in rt.doctor()] == []
        await handle.resume()
        assert await handle.result() == [0, 1, 2, 3, 4, 5]
        assert [problem async for problem in rt.doctor()] == []


async def test_a_checkpoint_that_retention_drops_while_it_is_read_is_gone_and_not_damaged(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    """Between the look at its entry and the reading of its segment, the owner drops what lies before its floor."""

    class Slow(WatchedStore):
        meanwhile: Callable[[], Any] | None = None

        async def read_entries(self, run: str, **place: Any) -> list[Any]:
            found = await super().read_entries(run, **place)
            if self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                await meanwhile()
            return found

    gate, inside = asyncio.Event(), asyncio.Event()

    async def advance(number: int, state: list[str]) -> list[str]:
        if number == 2:
            inside.set()
            await gate.wait()
        return [*state, "x" * 1000]

    flow = Pipeline("dropping", advance, total=6, policy=CheckpointPolicy(on_finish="delete"))
    store = Slow(make_store())
    async with make_runtime() as owner, make_runtime(store) as rt:
        handle = await owner.start(flow, [], id="r1")
        await inside.wait()

        async def finish() -> None:
            gate.set()
            await handle.result()

        store.meanwhile = finish
        assert await rt.load("r1@3") is None
