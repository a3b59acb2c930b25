"""A run that waits is taken up when it is due, whatever was read of it a moment before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from conftest import MakeRuntime, MakeStore
from holdfast import Pipeline
from holdfast.engine import waking, worker
from holdfast.engine.waking import Waker
from holdfast.model import Commit, Head, HeadChange, Query, RunStatus
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.build import create


async def test_a_run_that_is_let_go_while_the_waker_reads_is_not_forgotten() -> None:
    reading, go_on, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def list_heads(self, query: Query) -> list[Head]:
            if reading.is_set():
                return await super().list_heads(query)
            reading.set()
            await go_on.wait()
            return []  # the run was being driven when this was read

    async def take(heads: list[Head]) -> None:
        assert [head.id for head in heads] == ["run"]
        taken.set()

    async def no_children(head: Head) -> bool:
        return False

    clock = ManualClock()
    store, due = Slow(clock), clock.now() + 10
    waker = Waker(store, clock, take, no_children)
    waker.watch("run", clock.now())
    await reading.wait()
    new = replace(create("run", status=RunStatus.WAITING, wake_at=due), change=HeadChange(owner=None))
    await store.commit([new])
    waker.let_go("run", due)
    go_on.set()
    await asyncio.sleep(0)
    clock.advance(10)
    async with asyncio.timeout(20):
        await taken.wait()
    waker.stop()


async def test_a_run_that_is_let_go_while_its_runtime_closes_is_not_looked_after() -> None:
    async def take(heads: list[Head]) -> None:
        raise AssertionError

    async def no_children(head: Head) -> bool:
        return False

    clock = ManualClock()
    waker = Waker(MemoryStore(clock), clock, take, no_children)
    waker.stop()
    waker.let_go("run", None)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def _parents(count: int) -> list[Commit]:
    fields: dict[str, Any] = {"status": RunStatus.WAITING, "waiting_for": "child run c"}
    return [replace(create(f"p{n}", flow="parent", **fields), change=HeadChange(owner=None)) for n in range(count)]


async def test_of_many_that_wait_for_children_some_are_looked_at_each_time_and_none_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    async def take(heads: list[Head]) -> None:
        raise AssertionError

    async def looked_at(head: Head) -> bool:
        seen.append(head.id)
        return False

    monkeypatch.setattr(waking, "PARENTS", 2)
    clock = ManualClock()
    store = MemoryStore(clock)
    await store.commit(_parents(5))
    waker = Waker(store, clock, take, looked_at)
    waker._watched = dict.fromkeys(f"p{n}" for n in range(5))
    for times in (2, 4, 5, 7, 9, 10):
        waker._sweep_at = waker._children_at = 0.0
        await waker._look()
        assert len(seen) == times
    assert set(seen[:5]) == set(seen[5:])


async def test_a_worker_looks_at_some_of_many_that_wait_for_children_each_time_and_leaves_none_out(
    make_store: MakeStore, make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    async def looked_at(head: Head) -> bool:
        seen.append(head.id)
        return False

    monkeypatch.setattr(worker, "_PAGE", 2)
    store = make_store()
    async with make_runtime(store) as rt:
        await store.commit(_parents(5))
        rt.register(Pipeline("parent", len))
        one = worker.Worker(rt._now().engine, rt._now().recovery, rt._now().pruning, looked_at, queues=None, poll=1.0)
        for times in (2, 4, 5, 7, 9, 10):
            await one._wake_parents()
            assert len(seen) == times
        assert set(seen[:5]) == set(seen[5:])
