"""For tests of questions: a flow that asks one, and those that are open."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Ask, Runtime, ask, flow


def asking(schema: Any = None, **options: Any) -> Any:
    """A flow that asks one question and gives the answer."""

    @flow(name="asking")
    async def body() -> Any:
        return await ask("Go on?", schema=schema, **options)

    return body


async def open_asks(rt: Runtime, run: str | None = None) -> list[Ask]:
    """The open questions of the run, or of all."""
    return [question async for question in rt.asks(run)]


async def until_asked(rt: Runtime, run: str, count: int = 1) -> list[Ask]:
    """The open questions of the run, once there are so many."""
    async with asyncio.timeout(20):
        while len(found := await open_asks(rt, run)) != count:
            await asyncio.sleep(0.005)
        return found
