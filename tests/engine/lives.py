"""A run that is cut off as by a kill, and goes on in another life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import Event, Runtime
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


class Lives:
    """The lives of the run `r1`, one after the other, on one kind of store."""

    def __init__(self, make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> None:
        self._make_runtime, self._make_store, self._clock = make_runtime, make_store, clock
        self.store: WatchedStore | None = None
        """What the life under way, or the last one, writes to."""

    def runtime(self, **settings: Any) -> Runtime:
        """A runtime whose store is watched."""
        self.store = WatchedStore(self._make_store())
        return self._make_runtime(self.store, **settings)

    async def cut(self, flow: Any, input: Any = None, *, at: asyncio.Event, **settings: Any) -> None:
        """Run until `at`, then die."""
        assert await self.cut_or_end(flow, input, at=at, **settings), "it ended before it was cut off"

    async def cut_or_end(self, flow: Any, input: Any = None, *, at: asyncio.Event, **settings: Any) -> bool:
        """The same; False when the run has ended before."""
        async with self.runtime(**settings) as rt:
            running = asyncio.ensure_future(rt.run(flow, input, id="r1"))
            coming = asyncio.ensure_future(at.wait())
            await asyncio.wait({running, coming}, return_when=asyncio.FIRST_COMPLETED)
            coming.cancel()
            if running.done():
                running.result()
                return False
            assert self.store is not None
            await kill(rt, self.store, self._clock)
            await asyncio.wait({running})
            return isinstance(running.exception(), Exception)

    def lease_runs_out(self) -> None:
        """Whoever died is known to be dead from now on."""
        self._clock.advance(16)

    async def finish(self, flow: Any, input: Any = None, **settings: Any) -> Any:
        """The result of going on."""
        async with self.runtime(**settings) as rt:
            return await rt.run(flow, input, id="r1")

    async def events(self, kind: str) -> list[Event]:
        """The events of that type in the run's log."""
        async with self._make_runtime() as rt:
            return [event async for event in rt.events("r1") if event.type == kind]


class Once:
    """Waits at a gate the first time, for the test to cut it off there; later it goes through."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def wait(self) -> None:
        """Stand here for ever the first time."""
        if not self.reached.is_set():
            self.reached.set()
            await asyncio.Event().wait()
