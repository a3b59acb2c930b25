"""For tests of runs that wait: see them come to where they are let go."""

from __future__ import annotations

import asyncio

from holdfast import Run, Runtime


async def until_status(rt: Runtime, run: str, *statuses: str) -> Run:
    """The run, once it has one of these statuses."""
    async with asyncio.timeout(20):
        while True:
            found = await rt.get(run)
            if found is not None and found.status in statuses:
                return found
            await asyncio.sleep(0.005)


async def until_event(rt: Runtime, run: str, kind: str, times: int = 1) -> None:
    """Return when this has happened so many times in the run."""
    async with asyncio.timeout(20):
        while [event.type async for event in rt.events(run)].count(kind) < times:
            await asyncio.sleep(0.005)
