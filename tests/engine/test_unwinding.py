"""The code of a run that is let go unwinds: in tasks and in threads, also where it swallows that."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from conftest import MakeRuntime
from holdfast import Pipeline, ask, blocking, flow, step
from holdfast.context import Suspended
from holdfast.testing import ManualClock
from waiting import until_event, until_status


async def test_the_body_unwinds_when_it_is_let_go_and_its_finally_blocks_run(make_runtime: MakeRuntime) -> None:
    left: list[str] = []

    @flow
    async def body() -> str:
        try:
            return str(await ask("Go on?"))
        except asyncio.CancelledError:
            left.append("cancelled")
            raise
        finally:
            left.append("finally")

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        assert left == ["cancelled", "finally"]
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"
        assert left == ["cancelled", "finally", "finally"]


async def test_def_bodies_unwind_in_their_threads_and_go_on_when_they_are_due(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    left: list[Any] = []

    @step
    def approve(what: str) -> Any:
        return blocking.ask(f"{what}?")

    @flow
    def body() -> list[Any]:
        try:
            blocking.sleep(100)
            return [approve("inner"), blocking.receive("news")]
        except Exception as error:
            left.append(error)
            raise
        finally:
            left.append("finally")

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_event(rt, "r1", "waiting")
        clock.advance(100)
        await until_event(rt, "r1", "waiting", 2)
        await rt.answer("r1", "yes")
        await until_event(rt, "r1", "waiting", 3)
        await rt.send("r1", "news", "good")
        assert await handle.result() == ["yes", "good"]
        assert left == ["finally"] * 4


async def test_a_thread_that_swallows_being_let_go_cannot_use_a_verb_or_return_any_more(
    make_runtime: MakeRuntime,
) -> None:
    swallowed = 0

    @flow
    def body() -> str:
        nonlocal swallowed
        for _ in range(3):
            try:
                return str(blocking.ask("Go on?", key="one"))
            except Suspended:
                swallowed += 1
        return "stubborn"

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        assert swallowed >= 1
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"


async def test_a_body_that_swallows_being_let_go_is_let_go_all_the_same(make_runtime: MakeRuntime) -> None:
    swallowed = 0

    @flow
    async def body() -> str:
        nonlocal swallowed
        while True:
            try:
                return str(await ask("Go on?", key=f"k{swallowed}"))
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 3:
                    return "stubborn"

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        assert swallowed == 4
        swallowed = 0
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"


async def test_a_body_that_swallows_every_cancellation_does_not_stop_the_others(make_runtime: MakeRuntime) -> None:
    stop, rounds = threading.Event(), 0

    @flow
    async def stubborn() -> str:
        nonlocal rounds
        while not stop.is_set():
            try:
                return str(await ask("Go on?", key=f"k{rounds}"))
            except asyncio.CancelledError:
                rounds += 1
        return "stubborn"

    timer = threading.Timer(10.0, stop.set)  # so that the test fails instead of standing still
    timer.start()
    async with make_runtime() as rt:
        await rt.start(stubborn, id="r1")
        while rounds < 10:
            await asyncio.sleep(0)
        assert await rt.run(Pipeline("other", [lambda state: 7]), id="r2") == 7
        assert not stop.is_set()
        stop.set()
        timer.cancel()
        await until_status(rt, "r1", "waiting")
