"""For tests of children: flows that spawn and are spawned, and the gate at which some of them wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Run, Runtime, flow, spawn

ran: list[Any] = []


class Gate:
    """Opened by the test; whoever comes to it is counted."""

    def __init__(self) -> None:
        self.shut()

    def shut(self) -> None:
        """Be as new, for another test."""
        self.open, self.reached = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        """Wait until it is open."""
        self.reached.set()
        await self.open.wait()


gate = Gate()


def begin_anew() -> None:
    """Forget the test before: whoever uses the flows below calls this first."""
    gate.shut()
    ran.clear()


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    """What the condition gives, as soon as it is something."""
    async with asyncio.timeout(20):
        while not (found := await condition()):
            await asyncio.sleep(0.01)
    return found


async def at(rt: Runtime, run: str, *statuses: str) -> Run:
    """The run, as soon as it has one of these statuses."""

    async def there() -> Run | None:
        found = await rt.get(run)
        return found if found is not None and found.status in statuses else None

    found: Run = await until(there)
    return found


@flow
async def double(n: int) -> int:
    ran.append(n)
    return 2 * n


@flow
async def gated(n: int) -> int:
    await gate.pass_through()
    ran.append(n)
    return 2 * n


@flow
async def parent_of_gated(n: int) -> int:
    result: int = await spawn(gated, n, id="child")
    return result + 1
