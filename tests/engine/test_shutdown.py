"""A clean shutdown hands every run back, resumable; the second request does so at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Pipeline, RetryPolicy, Runtime
from holdfast.engine import hurry
from holdfast.errors import RunInterruptedError, UsageError
from holdfast.model import Claim, Commit, Query, Reply
from holdfast.store.base import Store
from watched import WatchedStore

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


async def interrupted_at(make_runtime: MakeRuntime, run: str = "r1") -> tuple[str, int, int]:
    async with make_runtime() as rt:
        found = await rt.get(run)
        assert found is not None
        return found.status.value, found.step, found.attempt


async def test_a_step_may_finish_within_the_grace_time(make_runtime: MakeRuntime) -> None:
    inside, gate, calls = asyncio.Event(), asyncio.Event(), []

    async def first(state: list[str]) -> list[str]:
        calls.append("first")
        inside.set()
        await gate.wait()
        return [*state, "first"]

    def second(state: list[str]) -> list[str]:
        calls.append("second")
        return [*state, "second"]

    flow = Pipeline("graceful", [first, second])
    async with make_runtime() as rt:
        waiting = asyncio.ensure_future(rt.run(flow, [], id="r1"))
        await inside.wait()
        closing = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
        gate.set()
        await closing
    with pytest.raises(RunInterruptedError, match="r1"):
        await waiting
    assert await interrupted_at(make_runtime) == ("interrupted", 1, 1)
    async with make_runtime() as rt:
        assert await rt.run(flow, [], id="r1") == ["first", "second"]
        types = [event.type async for event in rt.events("r1")]
    assert calls == ["first", "second"]
    assert types.count("interrupted") == types.count("resumed") == 1


async def test_whoever_closes_a_runtime_that_is_being_closed_waits_until_it_is_closed(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    inside = asyncio.Event()

    async def slow(state: Any) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)  # it takes a while to clean up

    async with make_runtime(grace=1000) as rt:
        handle = await rt.start(Pipeline("slow", [slow]), {}, id="r1")
        await inside.wait()
        first = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
    store = make_store()
    await store.open()
    assert (await store.list_owners(), first.done()) == ([], True)
    await store.close()
    await rt.close()  # once more: there is nothing left to do
    with pytest.raises(UsageError, match="not open"):
        await handle.result()


@pytest.mark.parametrize("how", ["no grace", "second close"])
async def test_what_still_runs_is_cut_off_and_can_be_resumed(make_runtime: MakeRuntime, how: str) -> None:
    inside, ended, hang = asyncio.Event(), [], [True]

    async def slow(state: Any) -> str:
        inside.set()
        try:
            if hang:
                await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
        return "done"

    flow = Pipeline("slow", [slow])
    async with make_runtime(grace=0 if how == "no grace" else 1000) as rt:
        waiting = asyncio.ensure_future(rt.run(flow, {}, id="r1"))
        await inside.wait()
        await asyncio.gather(rt.close(), *([] if how == "no grace" else [rt.close()]))
    with pytest.raises(RunInterruptedError):
        await waiting
    assert ended == ["cleaned up"]
    assert await interrupted_at(make_runtime) == ("interrupted", 0, 1)
    hang.clear()
    async with make_runtime() as rt:
        rt.register(flow)
        (handle,) = await rt.recover()
        assert await handle.result() == "done"


async def test_a_step_that_ignores_everything_is_left_behind(make_runtime: MakeRuntime, caplog: Any) -> None:
    """Its run goes on elsewhere, and what it returns in the end is refused; nobody took it over, so nobody says so."""
    inside, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    stubborn = [True]

    async def ignore(state: list[str]) -> list[str]:
        inside.set()
        if stubborn:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass
            ended.set()
            return [*state, "too late"]
        return [*state, "in time"]

    flow = Pipeline("ignore", [lambda state: ["saved later"], ignore], policy=CheckpointPolicy(every_n_steps=10))
    try:
        async with make_runtime(grace=0) as rt:
            waiting = asyncio.ensure_future(rt.run(flow, [], id="r1"))
            await inside.wait()
            await rt.close()
            with pytest.raises(RunInterruptedError):
                await waiting
        assert await interrupted_at(make_runtime) == ("interrupted", 1, 1)
        stubborn.clear()
        async with make_runtime() as rt:
            assert await rt.run(flow, [], id="r1") == ["saved later", "in time"]
            release.set()
            await ended.wait()
            for _ in range(5):
                await asyncio.sleep(0)
            assert await rt.run(flow, [], id="r1") == ["saved later", "in time"]
    finally:
        release.set()
    assert "was given up by this process" in caplog.text
    assert "taken over" not in caplog.text


async def test_a_def_step_that_never_returns_does_not_keep_the_runtime_open(make_runtime: MakeRuntime) -> None:
    inside, release = threading.Event(), threading.Event()

    def block(state: Any) -> None:
        inside.set()
        release.wait()

    try:
        async with make_runtime(grace=0) as rt:
            await rt.start(Pipeline("block", [block]), {}, id="r1")
            await asyncio.to_thread(inside.wait)
            await rt.close()
        assert await interrupted_at(make_runtime) == ("interrupted", 0, 1)
    finally:
        release.set()


async def test_runs_in_the_queue_and_in_a_backoff_are_handed_back_at_once(make_runtime: MakeRuntime) -> None:
    failed, calls = asyncio.Event(), []

    def shaky(state: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("again")

    flow = Pipeline("shaky", [shaky])
    settings = {"retry": RetryPolicy(attempts=2, first_delay=1000), "grace": 1000, "concurrency": 1}
    async with make_runtime(**settings, on_event=lambda e: e.type == "step_failed" and failed.set()) as rt:
        await rt.start(flow, {}, id="r1")
        await rt.start(flow, {}, id="r2")
        await failed.wait()
        await rt.close()
    assert await interrupted_at(make_runtime, "r1") == ("interrupted", 0, 1)
    assert await interrupted_at(make_runtime, "r2") == ("interrupted", 0, 1)
    assert calls == [1]


async def test_steps_that_the_policy_left_out_are_saved_at_a_shutdown(make_runtime: MakeRuntime) -> None:
    inside = asyncio.Event()

    async def hang(state: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    flow = Pipeline("saved", [lambda s: s + 1, lambda s: s + 1, hang], policy=CheckpointPolicy(every_n_steps=10))
    async with make_runtime(grace=0) as rt:
        await rt.start(flow, 0, id="r1")
        await inside.wait()
        await rt.close()
    async with make_runtime() as rt:
        point = await rt.load("r1")
    assert point is not None
    assert (point.state, point.step, point.next) == (2, 2, "hang")


class Unreachable(WatchedStore):
    """A store that does not answer any more to what a runtime does on its way out."""

    def __init__(self, inner: Store, silent: str) -> None:
        super().__init__(inner)
        self._silent, self.asked = silent, asyncio.Event()

    async def _wait(self, name: str) -> None:
        if name == self._silent:
            self.asked.set()
            await asyncio.Event().wait()

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        await self._wait("claim")
        return await super().claim_runs(query, owner)

    async def retire_owner(self, owner: str) -> None:
        await self._wait("retire")
        await super().retire_owner(owner)

    async def close(self) -> None:
        await super().close()
        await self._wait("close")


@pytest.mark.parametrize("silent", ["claim", "retire", "close"])
async def test_the_second_request_does_not_wait_for_a_store_that_does_not_answer(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    store = Unreachable(make_store(), silent)
    rt = make_runtime(store)
    await rt.__aenter__()
    await rt.run(Pipeline("short", [lambda state: state]), 1, id="r1")
    if silent == "claim":
        claiming = asyncio.ensure_future(rt.rewind("r1@1"))
        await store.asked.wait()
    closing = asyncio.ensure_future(rt.close())
    await store.asked.wait()
    # Behind a claim the owner is still to be retired by a store that answers, however long that takes.
    monkeypatch.setattr(hurry, "_A_MOMENT", 20.0 if silent == "claim" else 0.01)
    async with asyncio.timeout(20):
        await asyncio.gather(closing, rt.close())
    assert rt._signed_off == (silent != "retire")
    if silent == "claim":
        claiming.cancel()


async def test_whoever_waits_for_a_run_is_told_though_there_was_no_time_to_hand_it_back(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hurry, "_A_MOMENT", 0.01)
    inside, store = asyncio.Event(), Silent(make_store())

    async def wait(state: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    rt = make_runtime(store, grace=0)
    await rt.__aenter__()
    running = asyncio.ensure_future(rt.run(Pipeline("long", [wait]), 1, id="r1"))
    await inside.wait()
    store.silent = True
    async with asyncio.timeout(5):
        await asyncio.gather(rt.close(), rt.close())
        with pytest.raises(RunInterruptedError):
            await running


class Silent(WatchedStore):
    """A store whose commits get no reply any more."""

    silent = False

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        if self.silent:
            await asyncio.Event().wait()
        return await super().commit(batch)

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        return None if self.silent else super().try_commit(batch, *how)


async def test_a_closed_runtime_says_that_it_is_closed(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    with pytest.raises(UsageError, match="not open"):
        await rt.get("r1")
    async with rt:
        handle = await rt.start(Pipeline("quick", [lambda s: s]), 1, id="r1")
        assert await handle.result() == 1
    await rt.close()
    with pytest.raises(UsageError, match="not open"):
        await rt.run(Pipeline("quick", [lambda s: s]), 1, id="r1")
    async with rt:  # it can be opened again
        assert await rt.run(Pipeline("quick", [lambda s: s]), 1, id="r1") == 1
        with pytest.raises(UsageError, match="open already"):
            await rt.__aenter__()


async def test_a_runtime_that_is_closing_begins_nothing_and_leaves_nothing_behind(
    make_runtime: MakeRuntime, recwarn: pytest.WarningsRecorder
) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def wait(state: None) -> None:
        inside.set()
        await gate.wait()

    async with make_runtime() as rt:
        await rt.start(Pipeline("first", [wait]), id="r1")
        await inside.wait()
        closing = asyncio.ensure_future(rt.close())
        for _ in range(3):  # until it has begun to close
            await asyncio.sleep(0)
        for begin in (rt.start, rt.run):
            with pytest.raises(UsageError, match="shutting down"):
                await begin(Pipeline("second", [wait]), None, id="r2")
        gate.set()
        await closing
        gc.collect()  # what was never awaited says so when it goes
    assert [str(warning.message) for warning in recwarn] == []


async def test_who_follows_a_run_of_another_runtime_is_told_when_this_one_closes(make_runtime: MakeRuntime) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def wait(state: Any) -> str:
        inside.set()
        await gate.wait()
        return "done"

    flow = Pipeline("wait", [wait])
    async with make_runtime() as owner:
        handle = await owner.start(flow, {}, id="r1")
        await inside.wait()
        async with make_runtime() as rt:
            joined = asyncio.ensure_future(rt.run(flow, {}, id="r1"))
            await asyncio.wait({joined}, timeout=0.05)
        with pytest.raises(RunInterruptedError):
            await joined
        gate.set()
        assert await handle.result() == "done"


@pytest.mark.parametrize(
    "wrong", [{"heartbeat": 0}, {"heartbeat": 20}, {"concurrency": 0}, {"crash_limit": 0}, {"grace": -1}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Runtime("memory:", **wrong)
