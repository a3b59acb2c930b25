"""The functions that are tortured: flows whose calls tell the world outside that they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Runtime, blocking, call, flow
from holdfast.errors import RunFailedError, RunWaitingError
from holdfast.faults import fault

from .steps import begin

CALLS = 5
POLICIES = ("retry", "fail", "done", "not done")
"""What becomes of a call in doubt: the two that ask are named by the answer."""
BODIES = ("async", "def")


async def act(index: int) -> str:
    """Have an effect, on the loop."""
    begin(index)
    fault("effect.inside")
    await asyncio.sleep(0)
    return f"{index}:made"


def act_in_thread(index: int) -> str:
    """Have an effect, in a thread."""
    begin(index)
    fault("effect.inside")
    return f"{index}:made"


def five_calls(body: str, policy: str) -> Any:
    """A flow of five journaled calls, each with its number as key; two of an async body's run side by side."""
    on_doubt: Any = policy if policy in ("retry", "fail") else "ask"

    @flow(name="five-calls")
    async def in_loop(seed: int) -> list[str]:
        made = [await call.options(key="0", on_doubt=on_doubt)(act, 0)]
        made.append(await call.options(key="1", on_doubt=on_doubt)(act_in_thread, 1))
        made += await asyncio.gather(*(call.options(key=str(n), on_doubt=on_doubt)(act, n) for n in (2, 3)))
        return [*made, await call.options(key="4", on_doubt=on_doubt)(act, 4)]

    @flow(name="five-calls")
    def in_thread(seed: int) -> list[str]:
        made = [blocking.call.options(key=str(n), on_doubt=on_doubt)(act_in_thread, n) for n in range(4)]
        return [*made, blocking.call.options(key="4", on_doubt=on_doubt)(act, 4)]

    return in_loop if body == "async" else in_thread


async def run_calls(rt: Runtime, seed: int, body: str, policy: str) -> Any:
    """The results of the five calls, or the name of the error that ended the run; questions are answered."""
    while True:
        try:
            return await rt.run(five_calls(body, policy), seed, id="a", until="settled")
        except RunFailedError as error:
            return "CallInDoubtError" if "CallInDoubtError" in str(error) else str(error)
        except RunWaitingError:
            async for question in rt.asks("a"):
                told = {"done": False} if policy == "not done" else {"done": True, "result": _told(question.data)}
                await rt.answer("a", told, ask=question.id)


def _scenario(body: str, policy: str) -> Callable[[Runtime, int], Awaitable[Any]]:
    return lambda rt, seed: run_calls(rt, seed, body, policy)


SCENARIOS = {f"{body} {policy}": _scenario(body, policy) for body in BODIES for policy in POLICIES}


def _told(data: dict[str, Any]) -> str:
    return f"{index_of(data['key'])}:told"


def index_of(key: str) -> int:
    """Which of the five has that key."""
    return int(key.rpartition("=")[2])
