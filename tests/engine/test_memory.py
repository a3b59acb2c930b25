"""What a run held in memory is given free when the run has left."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import MakeRuntime
from holdfast import Pipeline, blocking, call, flow, sleep
from holdfast.engine.writer import RunWriter


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> int:
    """How many runs are held in memory: each has one writer, which has the state."""
    return sum(type(thing) is RunWriter for thing in gc.get_objects())


async def find(number: int) -> int:
    return number


def find_here(number: int) -> int:
    return number


async def add(number: int, state: dict[str, Any]) -> None:
    state["number"] = number


@flow
async def gathers(state: dict[str, Any]) -> Any:
    return await asyncio.gather(call(find, 1), call(find, 2))


@flow
def blocks(state: dict[str, Any]) -> Any:
    return blocking.call(find_here, 1)


@flow
async def waits(state: dict[str, Any]) -> Any:
    await sleep(0)
    return await call(find, 1)


PIPELINE, IN_THREAD = Pipeline("adds", add, total=3), Pipeline("in-thread", [lambda state: state])


@pytest.mark.parametrize("shape", [PIPELINE, IN_THREAD, gathers, blocks, waits], ids=lambda shape: shape.name)
async def test_a_run_that_has_ended_is_gone_before_any_collection(make_runtime: MakeRuntime, shape: Any) -> None:
    async with make_runtime() as rt:
        await rt.run(shape, {}, id="first")
        before = held()
        for number in range(3):
            await rt.run(shape, {}, id=f"r{number}")
        async with asyncio.timeout(10):
            while held() > before:  # timers that were cancelled stay in the loop until their time comes
                await asyncio.sleep(0.005)
        assert held() <= before


async def test_a_run_that_has_ended_can_still_be_asked_for_its_result(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(PIPELINE, {}, id="r1")
        assert await handle.result() == await handle.result() == {"number": 2}
