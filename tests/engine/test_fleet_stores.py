"""A fleet on the stores that have a server: the same program, several runtimes, one database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Pipeline, RunLimit, Runtime, ask, flow, sleep, spawn
from waiting import until_status

MakeRuntime = Callable[..., Runtime]


@pytest.fixture(params=["postgres", "redis"])
def make_runtime(request: pytest.FixtureRequest) -> MakeRuntime:
    """A new Runtime on the same runs each time it is called."""
    url = request.getfixturevalue(f"{request.param}_url")
    return lambda **settings: Runtime(url, **settings)


async def shout(state: str) -> str:
    return state.upper()


loud = Pipeline("loud", [shout, lambda state: f"{state}!"])
alone = Pipeline("alone", [shout], limit=RunLimit(total=2, per_key=1))


@flow
async def parent(words: list[str]) -> list[str]:
    await sleep(0.01)
    children = [spawn(loud, word) for word in words]
    return [await child for child in children]


@flow
async def approval() -> Any:
    return await ask("Go on?", schema=bool)


async def test_a_run_goes_to_its_end_and_can_be_read(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        assert await rt.run(loud, "a", id="r1", metadata={"who": "ann"}) == "A!"
        assert [run.id async for run in rt.list(metadata={"who": "ann"})] == ["r1"]
        assert [point.step async for point in rt.checkpoints("r1")] == [0, 1, 2]
        assert [event.type async for event in rt.events("r1")][-1] == "completed"
    async with make_runtime() as rt:
        assert await rt.run(loud, "a", id="r1") == "A!"


async def test_an_idle_worker_is_woken_and_does_not_wait_for_its_next_look(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt, make_runtime(recover=True) as worker:
        worker.register(loud)
        worker._now().worker._poll = 1e6
        for word in "abc":
            assert await (await rt.start(loud, word, queue="q")).result() == f"{word.upper()}!"


async def test_three_workers_share_what_waits_and_each_run_is_done_once(make_runtime: MakeRuntime) -> None:
    done: list[int] = []
    work = Pipeline("work", [done.append])
    async with make_runtime() as rt:
        handles = [await rt.start(work, n, queue=f"q{n % 3}", priority=n % 2) for n in range(30)]
        async with (
            make_runtime(recover=True) as one,
            make_runtime(recover=True) as two,
            make_runtime(recover=True) as three,
        ):
            for worker in (one, two, three):
                worker.register(work)
            await asyncio.gather(*(handle.result() for handle in handles))
    assert sorted(done) == list(range(30))


async def test_limits_hold_over_the_fleet(make_runtime: MakeRuntime) -> None:
    under_way: list[str] = []
    most = {"all": 0, "key": 0}

    async def work(key: str) -> None:
        under_way.append(key)
        most["all"] = max(most["all"], len(under_way))
        most["key"] = max(most["key"], under_way.count(key))
        await asyncio.sleep(0)
        under_way.remove(key)

    limited = Pipeline("limited", [work], limit=RunLimit(total=3, per_key=2))
    async with make_runtime() as rt, make_runtime(recover=True) as one, make_runtime(recover=True) as two:
        one.register(limited)
        two.register(limited)
        handles = [await rt.start(limited, "ab"[n % 2], key="ab"[n % 2]) for n in range(16)]
        await asyncio.gather(*(handle.result() for handle in handles))
    assert most["all"] <= 3
    assert most["key"] <= 2


async def test_a_run_that_waits_is_answered_through_another_process(make_runtime: MakeRuntime) -> None:
    async with make_runtime(recover=True) as worker, make_runtime() as rt:
        worker.register(approval)
        handle = await rt.start(approval, queue="people")
        await until_status(rt, handle.id, "waiting")
        await handle.answer(True)
        assert await handle.result() is True


async def test_a_parent_and_its_children_go_through(make_runtime: MakeRuntime) -> None:
    async with (
        make_runtime(recover=True, concurrency=2) as worker,
        make_runtime(recover=True) as two,
        make_runtime() as rt,
    ):
        worker.register(parent, loud)
        two.register(parent, loud)
        handle = await rt.start(parent, ["a", "b", "c"], queue="q")
        assert await handle.result() == ["A!", "B!", "C!"]


async def test_pause_resume_and_cancel_reach_a_run_wherever_it_is(make_runtime: MakeRuntime) -> None:
    held = asyncio.Event()

    async def hold(step: int, state: int) -> int:
        await held.wait()
        return state + 1

    slow = Pipeline("slow", hold, total=3)
    async with make_runtime(recover=True) as worker, make_runtime() as rt:
        worker.register(slow)
        handle = await rt.start(slow, 0, queue="q")
        await until_status(rt, handle.id, "running")
        await handle.pause()
        held.set()
        await until_status(rt, handle.id, "paused")
        rt.register(slow)
        await handle.resume()
        assert await handle.result() == 3
        held.clear()
        other = await rt.start(slow, 0, queue="q")
        await until_status(rt, other.id, "running")
        await other.cancel("enough")
        assert (await until_status(rt, other.id, "cancelled")).error == "enough"
