"""Brings a run of three steps into every situation that the verb table knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from holdfast import Pipeline, Run, Runtime, ask
from holdfast.errors import HoldfastError
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore, kill

INPUT = {"topic": "tides"}
RESULT = {"topic": "tides", "done": ["first", "second", "third"]}
SITUATIONS = [
    "live here",
    "live elsewhere",
    "waiting",
    "pending",
    "interrupted",
    "dead owner",
    "paused",
    "completed",
    "failed",
    "cancelled",
]
RESUMABLE = ["pending", "interrupted", "dead owner"]
LIVE = ["live here", "live elsewhere"]


class Stage:
    """A runtime `rt`, a flow whose second step waits at a gate or asks a question, and the run `r1` of it."""

    def __init__(self, make_runtime: Callable[..., Runtime], make_store: Callable[[], Store], clock: ManualClock):
        self.make_runtime, self.make_store, self.clock = make_runtime, make_store, clock
        self.calls: list[str] = []
        self.gate, self.inside = asyncio.Event(), asyncio.Event()
        self.broken = self.asks = False
        self.flow = Pipeline("report", [self.first, self.second, self.third])
        self.rt = make_runtime()
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Stage:
        await self._open.enter_async_context(self.rt)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.gate.set()
        await self._open.aclose()

    async def first(self, state: dict[str, Any]) -> dict[str, Any]:
        self.calls.append("first")
        return {**state, "done": ["first"]}

    async def second(self, state: dict[str, Any]) -> None:
        if self.asks:
            await ask("Shall it be printed?")
        self.calls.append("second")
        self.inside.set()
        await self.gate.wait()
        if self.broken:
            raise LookupError("no such tide")
        state["done"].append("second")

    def third(self, state: dict[str, Any]) -> None:
        self.calls.append("third")
        state["done"].append("third")

    async def run(self) -> Run:
        """What is known of the run."""
        run = await self.rt.get("r1")
        assert run is not None
        return run

    async def elsewhere(self, store: Store | None = None) -> Runtime:
        """Another runtime on the same runs."""
        return await self._open.enter_async_context(self.make_runtime(store))

    async def bring_to(self, situation: str) -> None:
        """Make the run r1 and bring it there; afterwards the gate is open and no call is counted yet."""
        await getattr(self, "_" + situation.replace(" ", "_"))()
        if situation not in LIVE:
            self.gate.set()
        self.calls.clear()
        self.rt.register(self.flow)

    async def _live_here(self) -> None:
        await self.rt.start(self.flow, INPUT, id="r1")
        await self.inside.wait()

    async def _live_elsewhere(self) -> None:
        await (await self.elsewhere()).start(self.flow, INPUT, id="r1")
        await self.inside.wait()

    async def _interrupted(self) -> None:
        other = self.make_runtime()
        async with other:
            await other.start(self.flow, INPUT, id="r1")
            await self.inside.wait()
            await asyncio.gather(other.close(), other.close())

    async def _dead_owner(self) -> None:
        store = WatchedStore(self.make_store())
        other = await self.elsewhere(store)
        await other.start(self.flow, INPUT, id="r1")
        await self.inside.wait()
        await kill(other, store, self.clock)

    async def _pending(self) -> None:
        async with self.make_runtime() as other:
            await other.start(self.flow, INPUT, id="source")
            await self.inside.wait()
            async with self.make_runtime() as stranger:
                await stranger.fork("source@1", id="r1")
            await other.cancel("source")

    async def _paused(self) -> None:
        await self._live_here()
        await self.rt.pause("r1")
        await self._left()

    async def _waiting(self) -> None:
        self.asks = True
        async with self.make_runtime() as other:
            await other.start(self.flow, INPUT, id="r1")
            await until_status(other, "r1", "waiting")

    async def answer(self) -> None:
        """Answer the question of the run, as soon as it asks one; nothing when it asks none."""
        async with asyncio.timeout(20):
            while self.asks and not [question async for question in self.rt.asks("r1")]:
                await asyncio.sleep(0.005)
        if self.asks:
            await self.rt.answer("r1", True)

    async def _completed(self) -> None:
        self.gate.set()
        await self.rt.run(self.flow, INPUT, id="r1")

    async def _failed(self) -> None:
        self.broken = True
        await self._live_here()
        await self._left()
        self.broken = False

    async def _cancelled(self) -> None:
        await self._live_here()
        await self.rt.cancel("r1", "not needed")
        await self._left()

    async def _left(self) -> None:
        self.gate.set()
        with pytest.raises(HoldfastError):
            await self.rt.run(self.flow, INPUT, id="r1")
