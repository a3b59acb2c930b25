"""Runs that wait cost next to nothing, however many they are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import Pipeline, RunHandle, ask, flow
from holdfast.engine import waking
from holdfast.model import Claim, Head, Query
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore


@flow
async def approval(what: str) -> str:
    return f"{what}: {await ask(f'{what}?')}"


class CountingStore(WatchedStore):
    """Counts what is asked of it by those who look for runs that are due."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.queries = self.heads = self.claims = 0
        self.looking = self.most_looking = 0

    async def list_heads(self, query: Query) -> list[Head]:
        self.queries += 1
        found = await super().list_heads(query)
        self.heads += len(found)
        return found

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        found = await super().claim_runs(query, owner)
        self.claims += len(found)
        return found

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        self.queries += 1
        return await super().read_heads(ids)

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        self.looking += 1
        self.most_looking = max(self.most_looking, self.looking)
        try:
            return await super().wait_change(seen, timeout, ready=ready)
        finally:
            self.looking -= 1


async def test_waiting_runs_hold_no_slot(make_runtime: MakeRuntime) -> None:
    async with make_runtime(concurrency=2) as rt:
        handles = [await rt.start(approval, f"n{number}", id=f"r{number}") for number in range(6)]
        for handle in handles:
            await until_status(rt, handle.id, "waiting")
        assert await rt.run(Pipeline("other", [lambda state: 7]), id="other") == 7
        for handle in handles:
            await rt.answer(handle.id, "go")
        assert [await handle.result() for handle in handles] == [f"n{number}: go" for number in range(6)]


async def test_many_waiting_runs_do_not_make_waking_one_of_them_dear(
    make_runtime: MakeRuntime, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, store = 300, CountingStore(make_store())
    monkeypatch.setattr(waking, "SWEEP_EACH", 3600.0)
    async with make_runtime(store) as rt:
        for number in range(count):
            await rt.start(approval, "launch", id=f"r{number}")
        for number in range(count):
            await until_status(rt, f"r{number}", "waiting")
        store.queries = store.heads = store.claims = 0
        for number in range(10):
            await rt.answer(f"r{number}", "go")
            await RunHandle[str](rt, f"r{number}").result()
        assert store.claims == 10
        # Each is found by itself; all of them are read once in a while only, which was when they began to wait.
        assert store.heads <= 10 * 5


async def test_many_that_are_followed_while_they_wait_do_not_ask_for_each_at_every_change(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    count, store = 100, CountingStore(make_store())
    async with make_runtime(store) as rt:
        handles = [await rt.start(approval, "launch", id=f"r{number}") for number in range(count)]
        following = [asyncio.ensure_future(handle.result()) for handle in handles]
        for handle in handles:
            await until_status(rt, handle.id, "waiting")
        await rt.answer("r0", "go")
        await following[0]
        store.queries = 0
        for number in range(1, 11):
            await rt.answer(f"r{number}", "go")
            assert await following[number] == "launch: go"
        assert store.queries < 10 * 10  # the heads that all of them ask for at a change are read together
        assert store.most_looking <= 3  # one for all who follow, the waker's, and that for the mail of live runs
        for one in following:
            one.cancel()


async def test_a_waiting_run_that_cannot_be_taken_up_is_not_claimed_all_the_time(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CountingStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(approval, "launch", id="r1")
        await until_status(rt, "r1", "waiting")

        async def damaged(*args: Any) -> Any:
            raise LookupError("damaged")

        monkeypatch.setattr(rt._now().engine.taking, "take", damaged)
        monkeypatch.setattr(waking, "POLL", 0.0)  # so that it is looked at all the time
        store.claims = 0
        await rt.answer("r1", "go")
        while not store.claims:
            await asyncio.sleep(0.005)
        for _ in range(20):
            await rt._now().waker._look()
        assert store.claims <= 2  # both this test and the runtime itself may have been the first to look
        for _ in range(2):  # but for whoever asks for it
            with pytest.raises(LookupError, match="damaged"):
                await rt.run(approval, "launch", id="r1")
