"""A sixth shape takes one class: `start` and `advance` with a cursor. It gets everything else from the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from holdfast import RunStatus, Runtime, Step, call
from holdfast.context import Scope
from holdfast.flows.base import Position

MakeRuntime = Callable[..., Runtime]


class Countdown:
    """Calls one function with 3, 2, 1, and ends with all that it gave."""

    policy = None
    result_type = list

    def __init__(self, name: str, fn: Any) -> None:
        self.name, self._step = name, Step(fn, name="tick")

    @property
    def types(self) -> Iterable[Any]:
        return []

    @property
    def step_names(self) -> tuple[str, ...]:
        return ("tick",)

    @property
    def total_steps(self) -> int | None:
        return None

    def start(self, input: Any) -> Position:
        return Position([], {"step": 0, "next": "tick", "left": input})

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        return self._step if cursor["next"] == "tick" else None

    async def advance(self, position: Position, scope: Scope) -> Position:
        left, done = position.cursor["left"], position.cursor["step"] + 1
        given = await scope.perform(self._step, left)
        following = "tick" if left > 1 else None
        return Position([*position.state, given], {"step": done, "next": following, "left": left - 1})


async def test_a_shape_of_ones_own_runs_pauses_and_goes_on(make_runtime: MakeRuntime) -> None:
    made, paused = [], asyncio.Event()

    async def tick(left: int) -> str:
        text = await call(lambda: f"{left}!")
        made.append(left)
        if left == 2 and not paused.is_set():
            paused.set()
            await handle.pause()
        return str(text)

    countdown = Countdown("countdown", tick)
    async with make_runtime() as rt:
        handle = await rt.start(countdown, 3, id="r1")
        await paused.wait()
        while (await rt.get("r1")).status is not RunStatus.PAUSED:  # type: ignore[union-attr]
            await asyncio.sleep(0)
    async with make_runtime() as rt:
        rt.register(countdown)
        again = await rt.resume("r1")
        assert await again.result() == ["3!", "2!", "1!"]
    assert made == [3, 2, 1]
