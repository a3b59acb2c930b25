"""Fork and rewind at the last checkpoint of a run: it ends again with what it came to, and nothing is done again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from engine.lives import MakeRuntime
from holdfast import Runtime, Strategy, Team, Terminate, call, flow
from holdfast.errors import RunCancelledError

done: list[int] = []


@flow(name="doubled")
async def doubled(number: int) -> int:
    """What comes out is not the state."""
    return await call(_double, number)


def _double(number: int) -> int:
    done.append(number)
    return 2 * number


async def _ends(data: int) -> Terminate:
    return Terminate(await call(_double, data))


team = Team("team", [_ends], Strategy.ROUND_ROBIN)


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


async def the_end_of(rt: Runtime, run: str) -> str:
    """The last checkpoint."""
    last = await rt.load(run)
    assert last is not None
    assert last.next is None
    return last.id


@pytest.mark.parametrize("kind", [doubled, team])
async def test_a_fork_at_the_end_has_the_result_of_its_source(make_runtime: MakeRuntime, kind: Any) -> None:
    async with make_runtime() as rt:
        assert await rt.run(kind, 4, id="r1") == 8
        assert await (await rt.fork(await the_end_of(rt, "r1"), id="r2")).result() == 8
        assert await (await rt.fork("r2@1", id="r3")).result() == 8
        assert await rt.result("r3") == 8
    assert done == [4]


async def test_a_rewind_to_the_end_has_the_same_result(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        assert await rt.run(doubled, 4, id="r1") == 8
        for _ in range(2):
            assert await (await rt.rewind(await the_end_of(rt, "r1"))).result() == 8
        assert await (await rt.rewind("r1@1")).result() == 8
    assert done == [4, 4]


async def test_a_fork_that_another_process_takes_up_has_it_too(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(doubled, 4, id="r1")
        end = await the_end_of(rt, "r1")
    async with make_runtime() as rt:  # this one does not have the flow
        await rt.fork(end, id="r2")
    async with make_runtime() as rt:
        assert await rt.run(doubled, 4, id="r2") == 8
    assert done == [4]


async def test_a_fork_of_a_run_that_was_cancelled_in_its_last_moment_has_what_it_came_to(
    make_runtime: MakeRuntime,
) -> None:
    """What was finished is not done again, and what came of it is not lost."""
    inside, go = threading.Event(), threading.Event()

    def ends(data: int) -> Terminate:
        inside.set()
        go.wait()
        return Terminate(_double(data))

    async with make_runtime() as rt:
        handle = await rt.start(Team("late", [ends], Strategy.ROUND_ROBIN), 4, id="r1")
        await asyncio.to_thread(inside.wait)
        cancelling = asyncio.ensure_future(handle.cancel())
        while rt._now().engine.live["r1"].runner.control.cancel is None:
            await asyncio.sleep(0)
        go.set()
        await cancelling
        with pytest.raises(RunCancelledError):
            await handle.result()
        assert await (await rt.fork(await the_end_of(rt, "r1"), id="r2")).result() == 8
    assert done == [4]


async def test_another_state_is_not_given_the_result_of_the_old_one(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(doubled, 4, id="r1")
        assert await (await rt.fork(await the_end_of(rt, "r1"), id="r2", state=5)).result() == 5
