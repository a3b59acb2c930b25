"""Runs that nobody drives any more are found, taken up, and never silently left out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Pipeline, RetryPolicy, RunHandle, Runtime, call, emit, step
from holdfast.errors import FlowNotRegisteredError, RunFailedError, StepMissingError, StoreUnavailableError
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import LEASE, WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class Killed:
    """A flow of two steps whose second one hangs as long as the test says so."""

    def __init__(self, name: str = "killed") -> None:
        self.calls: list[str] = []
        self.inside, self.hangs = asyncio.Event(), True
        self.flow = Pipeline(name, [self.first, self.second])

    async def first(self, state: list[str]) -> list[str]:
        self.calls.append("first")
        return [*state, "first"]

    async def second(self, state: list[str]) -> list[str]:
        self.calls.append("second")
        self.inside.set()
        if self.hangs:
            await asyncio.Event().wait()
        return [*state, "second"]


@pytest.fixture
def die(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Callable[..., Any]:
    """Leaves a run behind in its second step, as a killed process does."""

    async def leave_behind(killed: Killed, *ids: str) -> None:
        store = WatchedStore(make_store())
        async with make_runtime(store) as rt:
            for run in ids or ("r1",):
                killed.inside.clear()
                await rt.start(killed.flow, [], id=run)
                await killed.inside.wait()
            await kill(rt, store, clock)
        killed.hangs = False

    return leave_behind


async def test_recover_takes_up_all_that_was_interrupted_and_gives_handles(
    make_runtime: MakeRuntime, die: Callable[..., Any]
) -> None:
    killed = Killed()
    await die(killed, "r1", "r2", "r3")
    async with make_runtime() as rt:
        rt.register(killed.flow)
        assert sorted(run.id for run in await rt.interrupted()) == ["r1", "r2", "r3"]
        assert {run.status.value for run in await rt.interrupted()} == {"interrupted"}
        handles = await rt.recover()
        assert all(isinstance(handle, RunHandle) for handle in handles)
        assert [handle.id for handle in handles] == ["r1", "r2", "r3"]
        assert [await handle.result() for handle in handles] == [["first", "second"]] * 3
        assert await rt.recover() == []
        assert await rt.interrupted() == []
    assert killed.calls.count("first") == 3


async def test_recover_leaves_finished_and_live_runs_alone(make_runtime: MakeRuntime) -> None:
    killed, done = Killed(), Pipeline("done", [lambda state: state])
    async with make_runtime(grace=0) as owner, make_runtime() as rt:
        await owner.start(killed.flow, [], id="r1")
        await killed.inside.wait()
        await owner.run(done, {}, id="r2")
        rt.register(killed.flow, done)
        assert await rt.recover() == []
        assert await owner.recover() == []


async def test_a_runtime_that_recovers_finds_an_owner_that_dies_after_boot(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    killed, store = Killed(), WatchedStore(make_store())
    async with make_runtime(recover=True, heartbeat=0.01, lease=10 * LEASE) as rt:
        rt.register(killed.flow)
        async with make_runtime(store) as owner:
            await owner.start(killed.flow, [], id="r1")
            await killed.inside.wait()
            killed.hangs = False
            await kill(owner, store, clock)
        assert await rt.run(killed.flow, [], id="r1") == ["first", "second"]


async def test_a_runtime_that_recovers_finds_a_lease_that_runs_out_after_boot(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    """The owner still holds the run but does not answer; what it writes later is refused."""
    killed, store = Killed(), WatchedStore(make_store())
    completed = asyncio.Event()
    async with make_runtime(store, heartbeat=14.9) as owner:
        handle = await owner.start(killed.flow, [], id="r1")
        await killed.inside.wait()
        killed.hangs = False
        settings = {"recover": True, "heartbeat": 0.01, "lease": LEASE}
        async with make_runtime(**settings, on_event=lambda e: e.type == "completed" and completed.set()) as rt:
            rt.register(killed.flow)
            await asyncio.wait({asyncio.ensure_future(completed.wait())}, timeout=0.05)
            assert killed.calls == ["first", "second"]  # it is owned: nobody touches it
            clock.advance(LEASE + 1)
            await completed.wait()
            assert killed.calls == ["first", "second", "second"]
        await asyncio.gather(owner.close(), owner.close())
    async with make_runtime() as rt:
        assert await rt.run(killed.flow, [], id="r1") == ["first", "second"]
    assert handle.id == "r1"


async def test_a_flow_that_is_not_registered_is_warned_of_once(
    make_runtime: MakeRuntime, die: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    killed, known = Killed(), Pipeline("known", [lambda state: state])
    await die(killed, "r1", "r2")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with make_runtime() as rt:
            rt.register(known)
            for _ in range(3):
                assert await rt.recover() == []
    warned = [record.message for record in caplog.records if "'killed'" in record.message]
    assert len(warned) == 1
    async with make_runtime() as rt:
        with pytest.raises(FlowNotRegisteredError, match="'killed'"):
            await rt.resume("r1")
        run = await rt.get("r1")
    assert run is not None
    assert run.status == "interrupted"


async def test_a_step_that_is_missing_is_warned_of_once_and_named(
    make_runtime: MakeRuntime, die: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    killed = Killed()
    await die(killed)
    changed = Pipeline("killed", [killed.first, step(name="renamed")(killed.second)])
    caplog.clear()
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with make_runtime() as rt:
            rt.register(changed)
            for _ in range(3):
                assert await rt.recover() == []
            for verb in (rt.resume("r1"), rt.run(changed, [], id="r1")):
                with pytest.raises(StepMissingError, match="'second'") as caught:
                    await verb
                assert (caught.value.step, caught.value.known) == ("second", ("first", "renamed"))
    assert len([record for record in caplog.records if "'second'" in record.message]) == 1
    async with make_runtime() as rt:
        assert await rt.run(killed.flow, [], id="r1") == ["first", "second"]


async def test_a_crash_loop_ends_as_failed_with_its_reason(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    killed = Killed()
    for _ in range(3):
        store = WatchedStore(make_store())
        async with make_runtime(store, crash_limit=3) as rt:
            rt.register(killed.flow)
            killed.inside.clear()
            if not await rt.recover():
                await rt.start(killed.flow, [], id="r1")
            await killed.inside.wait()
            await kill(rt, store, clock)
    async with make_runtime(crash_limit=3) as rt:
        rt.register(killed.flow)
        (handle,) = await rt.recover()
        with pytest.raises(RunFailedError, match="given up after 3 crashes or failed saves in step 'second'"):
            await handle.result()
        (listed,) = [run async for run in rt.list(status="failed")]
        assert (listed.id, listed.next, listed.error is not None) == ("r1", "second", True)
        assert await rt.recover() == []
        killed.hangs = False
        assert await (await rt.resume("r1")).result() == ["first", "second"]
        assert [run.id async for run in rt.list(status="failed")] == []
    assert killed.calls == ["first", "second", "second", "second", "second"]


async def test_an_orderly_end_in_between_neither_counts_as_a_crash_nor_forgets_those_before(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    killed = Killed()
    for ends_in_order in (False, True, False, True, False):
        store = WatchedStore(make_store())
        async with make_runtime(store, crash_limit=3, grace=0) as rt:
            rt.register(killed.flow)
            killed.inside.clear()
            if not await rt.recover():
                await rt.start(killed.flow, [], id="r1")
            await killed.inside.wait()
            if not ends_in_order:
                await kill(rt, store, clock)
    killed.hangs = False
    async with make_runtime(crash_limit=3) as rt:
        rt.register(killed.flow)
        (handle,) = await rt.recover()
        with pytest.raises(RunFailedError, match="given up after 3 crashes or failed saves in step 'second'"):
            await handle.result()


@pytest.mark.parametrize("says", ["call", "emit"])
async def test_what_a_step_says_of_itself_does_not_make_a_crash_loop_endless(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, says: str
) -> None:
    inside, over, lives = asyncio.Event(), asyncio.Event(), 0

    async def look(life: int) -> str:
        return "seen"

    async def crashes(state: Any) -> Any:
        if says == "call":
            await call(look, lives)  # found again with other arguments, which is told
        else:
            await emit("life", lives)
        inside.set()
        await over.wait()

    flow = Pipeline("crashes", [crashes])
    for _ in range(3):
        store, lives = WatchedStore(make_store()), lives + 1
        async with make_runtime(store, crash_limit=3) as rt:
            rt.register(flow)
            inside.clear()
            if not await rt.recover():
                await rt.start(flow, {}, id="r1")
            await inside.wait()
            written = store.commits
            while says == "emit" and store.commits == written:
                await asyncio.sleep(0.005)  # chunks wait for more of them
            await kill(rt, store, clock)
    over.set()
    async with make_runtime(crash_limit=3) as rt:
        rt.register(flow)
        (handle,) = await rt.recover()
        with pytest.raises(RunFailedError, match="given up after"):
            await handle.result()


async def test_a_run_that_only_waited_for_its_turn_did_not_crash_anybody(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    busy, waits = Killed("busy"), Killed("waits")
    waits.hangs = False
    for life in range(4):
        store = WatchedStore(make_store())
        async with make_runtime(store, concurrency=1, crash_limit=2) as rt:
            rt.register(waits.flow)
            await rt.start(busy.flow, [], id=f"busy-{life}")
            if not await rt.recover():
                await rt.start(waits.flow, [], id="r1")
            await busy.inside.wait()
            busy.inside.clear()
            await kill(rt, store, clock)
    async with make_runtime(concurrency=1, crash_limit=2, grace=0) as rt:  # nor does an orderly end change that
        rt.register(waits.flow)
        await rt.start(busy.flow, [], id="busy")
        await rt.recover()
    assert waits.calls == []
    async with make_runtime(crash_limit=2) as rt:
        assert await rt.run(waits.flow, [], id="r1") == ["first", "second"]


async def test_a_run_that_only_waited_for_its_next_attempt_did_not_crash_anybody(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    attempts: list[int] = []

    @step(retry=RetryPolicy(attempts=2, first_delay=1000, max_delay=1000, jitter=0))
    async def fails_once(state: Any) -> str:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise ValueError
        return "done"

    flow = Pipeline("fails-once", [fails_once])
    for _ in range(4):
        store = WatchedStore(make_store())
        async with make_runtime(store, crash_limit=2) as rt:
            rt.register(flow)
            if not await rt.recover():
                await rt.start(flow, {}, id="r1")
                while store.commits < 2:  # it is made, and its first attempt has failed
                    await asyncio.sleep(0.005)
            await kill(rt, store, clock)
    async with make_runtime(crash_limit=2) as rt:
        rt.register(flow)
        (handle,) = await rt.recover()
        clock.advance(1000)
        assert await handle.result() == "done"
    assert attempts == [0, 1]


async def test_progress_starts_the_count_of_crashes_anew(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside, hangs = asyncio.Event(), [True]

    async def hang(number: int, state: int) -> int:
        inside.set()
        if hangs:
            await asyncio.Event().wait()
        hangs.append(True)
        return state + 1

    flow = Pipeline("crawl", hang, total=4)
    for _ in range(4):
        store = WatchedStore(make_store())
        async with make_runtime(store, crash_limit=2) as rt:
            rt.register(flow)
            inside.clear()
            hangs[:] = []  # one step forward, then a crash
            if not await rt.recover():
                await rt.start(flow, 0, id="r1")
            while not hangs:
                await inside.wait()
                await asyncio.sleep(0)
            await kill(rt, store, clock)
    hangs[:] = []
    async with make_runtime(crash_limit=2) as rt:
        rt.register(flow)
        run = await rt.get("r1")
        assert run is not None
        assert run.status != "failed"


async def test_a_run_whose_store_failed_goes_on_once_that_is_mended(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    calls: list[str] = []
    store = WatchedStore(make_store())

    def first(state: list[str]) -> list[str]:
        calls.append("first")
        return ["first"]

    def second(state: list[str]) -> list[str]:
        calls.append("second")
        store.refuse = lambda commit: len(calls) == 2
        return [*state, "second"]

    flow = Pipeline("disk", [first, second, lambda state: [*state, "third"]])
    async with make_runtime(store) as rt:
        with pytest.raises(StoreUnavailableError, match="no space left"):
            await rt.run(flow, [], id="r1")
        point = await rt.load("r1")
        assert point is not None
        assert point.state == ["first"]
        store.refuse = lambda commit: False
        assert await (await rt.resume("r1")).result() == ["first", "second", "third"]
    assert calls == ["first", "second", "second"]


async def test_a_start_that_fails_leaves_no_run_and_no_turn_behind(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    flow = Pipeline("start", [lambda state: "done"])
    async with make_runtime(store, concurrency=1) as rt:
        store.refuse = lambda commit: True
        for _ in range(3):
            with pytest.raises(StoreUnavailableError):
                await rt.start(flow, {}, id="r1")
        store.refuse = lambda commit: False
        assert await rt.get("r1") is None
        assert await rt.run(flow, {}, id="r1") == "done"


async def test_recover_that_meets_more_runs_than_it_may_drive_drives_them_in_turn(
    make_runtime: MakeRuntime, die: Callable[..., Any]
) -> None:
    killed = Killed()
    await die(killed, "r1", "r2", "r3")
    async with make_runtime(concurrency=1) as rt:
        rt.register(killed.flow)
        handles = await rt.recover()
        assert [await handle.result() for handle in handles] == [["first", "second"]] * 3
