"""Children are cancelled with their parent, wherever they are."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.offspring import Gate, at, begin_anew, gate, parent_of_gated, ran, until
from holdfast import RunStatus, Runtime, ask, call, flow, spawn
from holdfast.errors import RunCancelledError
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore, kill


@pytest.fixture(autouse=True)
async def _fresh() -> None:
    begin_anew()


@flow
async def grandparent(n: int) -> int:
    result: int = await spawn(parent_of_gated, n, id="middle")
    return result


async def _all_cancelled(rt: Runtime) -> bool:
    return {run.id async for run in rt.list(status="cancelled")} == {"g", "middle", "child"}


async def test_cancel_reaches_children_and_grandchildren(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(grandparent, 4, id="g")
        await gate.reached.wait()
        await at(rt, "g", "waiting")
        await at(rt, "middle", "waiting")
        await rt.cancel("g", "enough")
        await until(lambda: _all_cancelled(rt))
        child = await rt.get("child")
        assert child is not None
        assert child.error == "enough"
        assert ran == []


async def test_cancel_reaches_a_tree_that_is_live(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(grandparent, 4, id="g")
        await gate.reached.wait()  # nobody has been let go yet
        await rt.cancel("g")
        await until(lambda: _all_cancelled(rt))
        assert ran == []


async def test_cancel_reaches_a_paused_child(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(grandparent, 4, id="g")
        await at(rt, "middle", "waiting")
        await rt.pause("middle")
        await at(rt, "middle", "paused")
        await rt.cancel("g")
        await until(lambda: _all_cancelled(rt))
        assert ran == []


async def test_cancel_reaches_children_that_nobody_drives(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(grandparent, 4, id="g")
        await gate.reached.wait()
        await at(rt, "g", "waiting")
        await kill(rt, store, clock)
    async with make_runtime() as rt:
        await rt.cancel("g")
        assert await _all_cancelled(rt)


async def test_cancel_reaches_children_that_are_live_in_another_runtime(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as there, make_runtime() as here:
        await there.start(grandparent, 4, id="g")
        await gate.reached.wait()
        await at(here, "g", "waiting")
        await here.cancel("g")
        await until(lambda: _all_cancelled(here))
        assert ran == []


async def test_cancel_reaches_a_child_that_is_only_just_being_started(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        engine = rt._now().engine
        create, door = engine.creating.create, Gate()

        async def slowly(run: str, *args: Any, **kwargs: Any) -> Any:
            if run == "child":
                await door.pass_through()
            return await create(run, *args, **kwargs)

        engine.creating.create = slowly  # type: ignore[method-assign]
        await rt.start(parent_of_gated, 4, id="p")
        await door.reached.wait()
        await rt.cancel("p")
        door.open.set()
        await at(rt, "p", "cancelled")
        await at(rt, "child", "cancelled")
        assert ran == []


async def test_a_parent_that_is_cancelled_while_its_runtime_closes_takes_its_waiting_child_along(
    make_runtime: MakeRuntime,
) -> None:
    inside, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @flow
    async def kid(state: Any) -> Any:
        return await ask("Go on?")

    def blocks(state: Any) -> None:
        loop.call_soon_threadsafe(inside.set)
        gate.wait(10)

    @flow
    async def parent(state: Any) -> Any:
        child = spawn(kid, state, id="kid")
        await call(blocks, 1)
        return await child

    async with make_runtime() as rt:
        running = asyncio.ensure_future(rt.run(parent, 1, id="p"))
        await inside.wait()
        await until_status(rt, "kid", "waiting")
        await rt.cancel("p")
        closing = asyncio.ensure_future(rt.close())
        await asyncio.sleep(0)
        gate.set()
        await closing
        with pytest.raises(RunCancelledError):
            await running
    async with make_runtime() as rt:
        assert {run.status async for run in rt.list()} == {RunStatus.CANCELLED}
