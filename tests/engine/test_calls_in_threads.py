"""A call that the thread of a `def` body makes itself counts as under way, though the loop has not begun it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

from holdfast import Runtime, blocking, current_run, flow
from holdfast.context import Suspended
from waiting import until_event, until_status

MakeRuntime = Callable[..., Runtime]


async def test_a_run_is_not_let_go_while_its_thread_makes_a_call_beside_a_question(make_runtime: MakeRuntime) -> None:
    begun, gate, made = threading.Event(), threading.Event(), list[str]()

    def slow() -> str:
        made.append("slow")
        begun.set()
        assert gate.wait(30)
        return "done"

    @flow
    def body() -> list[Any]:
        answers: list[Any] = []

        def ask() -> None:
            with contextlib.suppress(Suspended):  # a thread of one's own has nobody to pass it on to
                answers.append(blocking.ask("Go on?"))

        asking = threading.Thread(target=current_run().bind(ask))
        asking.start()
        done = blocking.call(slow)
        asking.join()
        return [done, *answers]

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_event(rt, "r1", "wait", 1)
        assert begun.wait(30)
        engine: Any = rt._now().engine
        waits = engine.live["r1"].runner.scope.waits
        while not waits._parked:
            await asyncio.sleep(0)
        assert not waits._is_still()
        gate.set()
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", "yes")
        assert await handle.result() == ["done", "yes"]
    assert made == ["slow"]


async def test_a_question_inside_a_call_of_the_thread_lets_the_run_go(make_runtime: MakeRuntime) -> None:
    made: list[str] = []

    def confirm() -> str:
        made.append("confirm")
        return f"answered {blocking.ask('Really?')}"

    @flow
    def body() -> str:
        return blocking.call(confirm)

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", "yes")
        assert await handle.result() == "answered yes"
    assert made == ["confirm", "confirm"]  # its function runs again from its top; what it asked is found
