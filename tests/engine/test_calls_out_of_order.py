"""Calls that are made in another order after a crash: each still gets its own result."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore
from holdfast import call, flow
from holdfast.testing import ManualClock


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


async def test_workers_that_take_from_a_queue_get_their_own_results(lives: Lives) -> None:
    made, cut, seen = Counter[int](), asyncio.Event(), set[int]()

    async def double(n: int) -> int:
        made[n] += 1
        for _ in range((n * 7) % 5):
            await asyncio.sleep(0)
        return 2 * n

    @flow
    async def pool() -> dict[int, int]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        out: dict[int, int] = {}

        async def worker() -> None:
            while True:
                n = await queue.get()
                out[n] = await call(double, n)
                seen.add(n)
                if len(out) == 15 and not cut.is_set():
                    cut.set()
                    await asyncio.Event().wait()
                queue.task_done()

        for n in range(30):
            queue.put_nowait(n)
        workers = [asyncio.create_task(worker()) for _ in range(3)]
        await queue.join()
        for one in workers:
            one.cancel()
        return out

    await lives.cut(pool, at=cut)
    finished = set(seen)
    assert await lives.finish(pool) == {n: 2 * n for n in range(30)}
    assert {n for n in made if made[n] > 1} & finished == set()


async def test_a_loop_over_a_set_finds_each_result_in_whatever_order_it_goes(lives: Lives) -> None:
    made, cut, orders = Counter[str](), asyncio.Event(), [["a", "b", "c"], ["c", "d", "a", "b"]]

    async def upper(text: str) -> str:
        made[text] += 1
        return text.upper()

    @flow
    async def over_a_set() -> dict[str, str]:
        out = {x: await call(upper, x) for x in orders[cut.is_set()]}
        if not cut.is_set():
            cut.set()
            await asyncio.Event().wait()
        return out

    await lives.cut(over_a_set, at=cut)
    assert await lives.finish(over_a_set) == {"a": "A", "b": "B", "c": "C", "d": "D"}
    assert made == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert await lives.events("call_changed") == []


async def test_a_new_call_among_others_out_of_order_is_found_again_after_the_next_crash(lives: Lives) -> None:
    made, lives_seen = Counter[str](), 0
    orders = [["a", "b"], ["b", "new", "a"], ["a", "b", "new"]]
    cuts = [asyncio.Event(), asyncio.Event()]

    async def upper(text: str) -> str:
        made[text] += 1
        return text.upper()

    @flow
    async def again_and_again() -> list[str]:
        out = [await call(upper, x) for x in orders[lives_seen]]
        if lives_seen < 2:
            cuts[lives_seen].set()
            await asyncio.Event().wait()
        return out

    await lives.cut(again_and_again, at=cuts[0])
    lives_seen = 1
    await lives.cut(again_and_again, at=cuts[1])
    lives_seen = 2
    assert await lives.finish(again_and_again) == ["A", "B", "NEW"]
    assert made == {"a": 1, "b": 1, "new": 1}


async def test_calls_whose_arguments_are_new_each_time_are_found_by_their_order(lives: Lives) -> None:
    made, cut, moment = Counter[Any](), asyncio.Event(), 0

    async def at(now: int, what: str) -> str:
        made[what] += 1
        return what

    @flow
    async def by_the_clock() -> list[str]:
        out = [await call(at, moment + place, what) for place, what in enumerate("xyz")]
        if not cut.is_set():
            cut.set()
            await asyncio.Event().wait()
        return out

    await lives.cut(by_the_clock, at=cut)
    moment = 1000
    assert await lives.finish(by_the_clock) == ["x", "y", "z"]
    assert made == {"x": 1, "y": 1, "z": 1}
    assert len(await lives.events("call_changed")) == 3
