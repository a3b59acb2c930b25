"""A run that waits is taken up when it is due, whatever was read of it a moment before."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from holdfast.engine.waking import Waker
from holdfast.model import Head, HeadChange, Query, RunStatus
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
