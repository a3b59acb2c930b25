"""No run stays owned by a process that lives and does not drive it, whatever fails or is given up on the way."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import CheckpointPolicy, Pipeline, Runtime
from holdfast.engine.ownership import Ownership
from holdfast.engine.postman import Postman
from holdfast.errors import (
    HoldfastError,
    OwnershipLostError,
    RunInterruptedError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    UsageError,
)
from holdfast.model import Claim, Commit, Head, Owner, Query, Reply
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class DeafStore(WatchedStore):
    """Does what it is asked to; then the reply is lost, or held back until the gate opens."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.lost = ""
        self.held = ""
        self.there, self.gate = asyncio.Event(), asyncio.Event()

    async def _answer(self, method: str) -> None:
        if self.held == method:
            self.there.set()
            await self.gate.wait()
        if self.lost == method:
            self.lost = ""
            raise StoreUnavailableError("the reply was lost")

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        return None

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        replies = await super().commit(batch)
        await self._answer("create" if any(commit.create for commit in batch) else "commit")
        return replies

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        claims = await super().claim_runs(query, owner)
        await self._answer("claim")
        return claims


async def add(state: list[int]) -> list[int]:
    return [*state, len(state)]


FLOW = Pipeline("adding", [add])


async def interrupted(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, *runs: str) -> None:
    """Runs whose owner died before their first step."""
    store = WatchedStore(make_store())
    inside = asyncio.Event()

    async def add(state: list[int]) -> None:
        inside.set()
        await asyncio.Event().wait()

    async with make_runtime(store) as rt:
        for run in runs:
            await rt.start(Pipeline("adding", [add]), [], id=run)
        await inside.wait()
        await kill(rt, store, clock)


@pytest.mark.parametrize("verb", ["run", "resume", "rewind", "recover", "cancel"])
async def test_a_claim_whose_reply_was_lost_is_given_up_and_can_be_made_again(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, verb: str
) -> None:
    await interrupted(make_runtime, make_store, clock, "r1")
    store = DeafStore(make_store())
    store.lost = "claim"
    verbs: dict[str, Callable[[Runtime], Any]] = {
        "run": lambda rt: rt.run(FLOW, id="r1"),
        "resume": lambda rt: rt.resume("r1"),
        "rewind": lambda rt: rt.rewind("r1@1"),
        "recover": lambda rt: rt.recover(),
        "cancel": lambda rt: rt.cancel("r1"),
    }
    async with make_runtime(store) as rt:
        rt.register(FLOW)
        with pytest.raises(StoreError, match="lost"):
            await verbs[verb](rt)
        async with asyncio.timeout(5):
            assert await rt.run(FLOW, id="r1") == [0]


async def test_a_claim_whose_reply_was_lost_is_given_up_without_being_asked_for(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    await interrupted(make_runtime, make_store, clock, "r1")
    store = DeafStore(make_store())
    store.lost = "claim"
    async with make_runtime(store) as rt, make_runtime() as other:
        rt.register(FLOW)
        with pytest.raises(StoreError, match="lost"):
            await rt.resume("r1")
        async with asyncio.timeout(5):
            assert await other.run(FLOW, id="r1") == [0]


async def test_a_damaged_run_does_not_keep_others_from_being_given_up_whose_claim_was_not_answered(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    await interrupted(make_runtime, make_store, clock, "r1", "r2")

    class Damaged(DeafStore):
        async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
            if "r1" in ids and self.lost == "":
                raise StoreDamagedError("r1", 1, "its checksum does not match")
            return await super().read_heads(ids)

    store = Damaged(make_store())
    async with make_runtime(store) as rt, make_runtime() as other:
        rt.register(FLOW)
        for run in ("r1", "r2"):
            store.lost = "claim"
            with pytest.raises(StoreError, match="lost"):
                await rt.resume(run)
        async with asyncio.timeout(5):
            assert await other.run(FLOW, id="r2") == [0]


async def test_a_run_whose_creation_was_not_answered_is_not_kept_from_others(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = DeafStore(make_store())
    store.lost = "create"
    async with make_runtime(store) as rt:
        with pytest.raises(StoreError, match="lost"):
            await rt.start(FLOW, [], id="r1")
        async with asyncio.timeout(5):
            assert await rt.run(FLOW, [], id="r1") == [0]


@pytest.mark.parametrize("verb", ["start", "run", "resume", "rewind", "recover", "fork"])
async def test_giving_up_the_wait_for_a_verb_does_not_leave_the_run_undriven(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, verb: str
) -> None:
    await interrupted(make_runtime, make_store, clock, "old")
    store = DeafStore(make_store())
    store.held = "create" if verb in ("start", "fork") else "claim"
    verbs: dict[str, Callable[[Runtime], Any]] = {
        "start": lambda rt: rt.start(FLOW, [], id="new"),
        "fork": lambda rt: rt.fork("old@1", id="new"),
        "run": lambda rt: rt.run(FLOW, id="old"),
        "resume": lambda rt: rt.resume("old"),
        "rewind": lambda rt: rt.rewind("old@1"),
        "recover": lambda rt: rt.recover(),
    }
    async with make_runtime(store) as rt:
        rt.register(FLOW)
        asking = asyncio.ensure_future(verbs[verb](rt))
        await store.there.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        store.gate.set()
        async with asyncio.timeout(5):
            assert await rt.run(FLOW, id="new" if verb in ("start", "fork") else "old") == [0]


@pytest.mark.parametrize("verb", ["start", "resume", "recover"])
async def test_a_run_that_comes_in_while_the_runtime_closes_is_handed_back(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, verb: str
) -> None:
    await interrupted(make_runtime, make_store, clock, "old")
    store, calls = DeafStore(make_store()), []
    store.held = "create" if verb == "start" else "claim"

    async def add(state: list[int]) -> list[int]:
        calls.append("add")
        return [*state, len(state)]

    flow = Pipeline("adding", [add])
    verbs: dict[str, Callable[[Runtime], Any]] = {
        "start": lambda rt: rt.start(flow, [], id="new"),
        "resume": lambda rt: rt.resume("old"),
        "recover": lambda rt: rt.recover(),
    }
    rt = make_runtime(store)
    async with rt:
        rt.register(flow)
        asking = asyncio.ensure_future(verbs[verb](rt))
        await store.there.wait()
        closing = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
        store.gate.set()
        await asking
        await closing
    assert calls == []
    async with make_runtime() as rt:
        run = await rt.get("new" if verb == "start" else "old")
        assert run is not None
        assert run.status == "interrupted"


async def test_one_run_that_cannot_be_taken_up_does_not_keep_the_others_from_it(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    """The store fails for a moment, in the middle of what recovery has claimed."""
    await interrupted(make_runtime, make_store, clock, "r1", "r2", "r3")
    store = WatchedStore(make_store())
    tries: list[str] = []

    def refuse(commit: Commit) -> bool:
        tries.append(commit.run)
        return len(tries) <= 2

    async with make_runtime(store, crash_limit=1) as rt:
        rt.register(FLOW)
        store.refuse = refuse
        await rt.recover()
        store.refuse = lambda commit: False
        async with asyncio.timeout(5):
            for run in ("r1", "r2", "r3"):
                with pytest.raises(HoldfastError, match="crashes"):
                    await rt.run(FLOW, id=run)


async def test_a_run_whose_store_is_removed_under_it_is_not_said_to_be_taken_over(tmp_path: Path) -> None:
    async def remove(state: Any) -> None:
        shutil.rmtree(tmp_path / "runs")

    async with Runtime(f"file:{tmp_path / 'runs'}") as rt:
        with pytest.raises(OwnershipLostError, match="what became of the run cannot be read") as lost:
            await rt.run(Pipeline("removing", [remove]), {}, id="r1")
    assert isinstance(lost.value.__cause__, StoreUnavailableError)


async def test_a_run_that_was_deleted_under_its_owner_is_not_said_to_be_taken_over(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = make_store()

    async def delete(state: Any) -> None:
        clock.advance(3600)  # its owner was silent for longer than its lease
        assert await store.delete_run("r1")

    async with make_runtime(store) as rt:
        with pytest.raises(OwnershipLostError, match="is not in the store any more"):
            await rt.run(Pipeline("deleting", [delete]), {}, id="r1")


async def test_cancelling_the_close_still_hands_the_runs_back(make_runtime: MakeRuntime) -> None:
    inside = asyncio.Event()

    async def add(state: list[int]) -> None:
        inside.set()
        await asyncio.Event().wait()

    rt = make_runtime(grace=1000)
    await rt.__aenter__()
    await rt.start(Pipeline("adding", [add]), [], id="r1")
    await inside.wait()
    closing = asyncio.ensure_future(rt.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with make_runtime() as other:
        assert await other.run(FLOW, id="r1") == [0]


def test_a_loop_that_ends_with_live_runs_fails_none_of_them_and_stops_beating(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    beats: list[bool] = []

    class Counted(WatchedStore):
        def beat(self, *args: Any) -> None:
            beats.append(loop.is_closed())
            super().beat(*args)

    async def add(state: list[int]) -> None:
        await asyncio.Event().wait()

    async def begin() -> Any:
        rt = Runtime(Counted(store), clock=clock, heartbeat=0.001)
        await rt.__aenter__()
        handle = await rt.start(Pipeline("adding", [add]), [], id="r1")
        await asyncio.sleep(0)
        return rt, handle

    async def look() -> None:
        head = (await store.read_heads(["r1"]))[0]
        assert head is not None
        assert head.status == "running"
        clock.advance(60)
        async with Runtime(store, clock=clock) as rt:
            assert await rt.run(FLOW, id="r1") == [0]

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        kept = runner.run(begin())
    rt = kept[0]
    rt._opened.engine.ownership._thread.join(5)
    assert not rt._opened.engine.ownership._thread.is_alive()
    asyncio.run(look())
    del kept, rt
    gc.collect()


async def test_pruning_that_fails_on_a_full_disk_keeps_no_run_from_going_on(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    policy, store = CheckpointPolicy(ttl=10), WatchedStore(make_store())
    flow = Pipeline("adding", [add], policy=policy)
    async with make_runtime() as rt:
        for run in ("r1", "r2", "r3"):
            await rt.run(flow, [], id=run)
    async with make_runtime(store, create=False) as rt:
        rt.register(flow)
        clock.advance(100)
        store.refuse = lambda commit: True
        with pytest.raises(StoreError, match="no space"):
            await rt.prune()
        store.refuse = lambda commit: False
        async with asyncio.timeout(5):
            for run in ("r1", "r2", "r3"):
                assert await (await rt.rewind(f"{run}@1")).result() == [0]


async def test_pruning_that_meets_an_error_which_is_none_of_ours_keeps_no_run_from_others(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    runs = ("r1", "r2", "r3")
    flow = Pipeline("adding", [add], policy=CheckpointPolicy(ttl=10))
    failures = iter([RuntimeError("the driver lost its connection")] * 2)  # also for whoever gives them back

    class Untranslated(WatchedStore):
        def _written(self, batch: Sequence[Commit]) -> None:
            if error := next(failures, None):
                raise error

    async with make_runtime() as rt:
        for run in runs:
            await rt.run(flow, [], id=run)
    async with make_runtime(Untranslated(make_store()), create=False) as rt, make_runtime(create=False) as other:
        other.register(flow)
        clock.advance(100)
        with pytest.raises(RuntimeError, match="the driver"):
            await rt.prune()
        async with asyncio.timeout(5):
            for run in runs:
                while (found := await other.get(run)) is None or found.owner is not None:
                    await asyncio.sleep(0.01)
                assert await (await other.rewind(f"{run}@1")).result() == [0]


async def test_a_run_whose_log_is_gone_keeps_no_other_from_being_pruned(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Emptied(WatchedStore):
        async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
            claims = await super().claim_runs(query, owner)
            return [replace(claim, entries=()) if claim.head.id == "r2" else claim for claim in claims]

    async with make_runtime(policy=CheckpointPolicy(ttl=10)) as rt:
        for run in ("r1", "r2", "r3"):
            await rt.run(FLOW, [], id=run)
    async with make_runtime(Emptied(make_store()), create=False) as rt:
        clock.advance(100)
        assert await rt.prune() == 2
        assert "the history of run r2 was not removed: r2 is damaged: the run has no log" in caplog.text


async def test_a_run_whose_head_cannot_be_read_does_not_keep_the_others_from_recovery(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    await interrupted(make_runtime, make_store, clock, "r1", "r2")

    class Tampered(WatchedStore):
        async def list_heads(self, query: Query) -> list[Any]:
            heads = await super().list_heads(query)
            return [replace(head, cursor=b"[]") if head.id == "r2" else head for head in heads]

        async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
            claims = await super().claim_runs(query, owner)
            heads = [replace(claim.head, metadata=b"{") for claim in claims]
            return [
                replace(claim, head=head) if claim.head.id == "r2" else claim
                for claim, head in zip(claims, heads, strict=True)
            ]

    async with make_runtime(Tampered(make_store())) as rt:
        rt.register(FLOW)
        assert [handle.id for handle in await rt.recover()] == ["r1"]
        assert await rt.run(FLOW, id="r1") == [0]


async def test_a_run_that_the_store_cannot_give_is_told_of_by_recovery_and_left_alone(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await interrupted(make_runtime, make_store, clock, "r1")

    class Damaged(WatchedStore):
        async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
            if query.ids == ("r1",):
                raise StoreDamagedError("r1", 1, "its checksum does not match")
            return await super().claim_runs(query, owner)

    async with make_runtime(Damaged(make_store())) as rt:
        rt.register(FLOW)
        assert await rt.recover() == []
        assert "run r1 was not resumed: r1@1 is damaged" in caplog.text


async def test_a_head_that_cannot_be_read_once_does_not_keep_its_run_for_ever(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    await interrupted(make_runtime, make_store, clock, "r1")

    class Tampered(WatchedStore):
        async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
            claims = await super().claim_runs(query, owner)
            return [replace(claim, head=replace(claim.head, metadata=b"{")) for claim in claims]

    async with make_runtime(Tampered(make_store())) as rt, make_runtime() as other:
        rt.register(FLOW)
        with pytest.raises(StoreDamagedError, match="truncated"):
            await rt.resume("r1")
        async with asyncio.timeout(5):
            assert await other.run(FLOW, id="r1") == [0]


# The first beat


@pytest.mark.parametrize("again", [True, False], ids=["tried again", "given up"])
async def test_a_heart_that_could_not_start_is_tried_again_and_keeps_nobody_from_closing(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    starting, fail = threading.Thread.start, [True]

    def start(thread: threading.Thread) -> None:
        if thread.name == "holdfast-heartbeat" and fail:
            raise RuntimeError("can't start new thread")
        starting(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    async with asyncio.timeout(10), Runtime(MemoryStore()) as rt:
        with pytest.raises(RunInterruptedError, match="new thread"):
            await rt.run(FLOW, [], id="r1")
        fail.clear()
        if again:
            assert await rt.run(FLOW, [], id="r1") == [0]


async def test_whoever_waits_for_a_first_beat_while_the_runtime_closes_begins_nothing() -> None:
    beating, goes_on = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def beat(self, owner: Owner, lease: float) -> None:
            beating.set()
            goes_on.wait()
            super().beat(owner, lease)

    store = Slow()
    ownership = Ownership(store, lease=15, heartbeat=5)
    waiting = asyncio.ensure_future(ownership.begin())
    await asyncio.to_thread(beating.wait)
    ending = asyncio.ensure_future(ownership.end())
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(UsageError, match="shutting down"):
        await waiting
    await ending
    assert await store.list_owners() == []


async def test_an_owner_signs_off_as_soon_as_its_heart_has_stopped_and_does_not_look_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    ownership, timers = Ownership(store, lease=15, heartbeat=5), list[float]()
    await ownership.begin()
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, *what: Any, **how: Any) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, *what, **how)

    monkeypatch.setattr(loop, "call_later", noted)
    await ownership.end()
    monkeypatch.undo()
    assert timers == []
    assert await store.list_owners() == []


async def test_whoever_waits_for_a_heart_that_hangs_can_stop_waiting() -> None:
    beats, goes_on = threading.Semaphore(0), threading.Event()

    class Hanging(MemoryStore):
        def beat(self, owner: Owner, lease: float) -> None:
            if ownership.begun:
                beats.release()
                goes_on.wait()
            super().beat(owner, lease)

    ownership = Ownership(Hanging(), lease=15, heartbeat=0.001)
    await ownership.begin()
    await asyncio.to_thread(beats.acquire)
    ending = asyncio.ensure_future(ownership.end())
    await asyncio.sleep(0)
    ending.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await ending
    goes_on.set()
    await ownership.end()


async def test_a_postman_who_was_stopped_does_not_go_round_for_a_late_run() -> None:
    postman = Postman(MemoryStore(), {})
    postman.stop()
    postman.send()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_loop_that_ends_with_commits_waiting_begins_none_of_them() -> None:
    class Stuck(MemoryStore):
        async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
            begun.append(len(batch))
            return await asyncio.Event().wait()  # type: ignore[return-value]

        def try_commit(self, batch: Sequence[Commit], *how: Any) -> None:  # type: ignore[override]
            return None

    begun: list[int] = []

    async def leave() -> None:
        rt = Runtime(Stuck())
        await rt.__aenter__()
        first = asyncio.ensure_future(rt.run(FLOW, [], id="r1"))
        while not begun:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(rt.run(FLOW, [], id="r2"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()

    asyncio.run(leave())
    assert begun == [1]
