"""What a runtime has for as long as it is open: its engine, and what works with it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from holdfast.clock import Clock
from holdfast.engine.children import Family
from holdfast.engine.engine import Engine
from holdfast.engine.following import Following
from holdfast.engine.hurry import unless_hurried
from holdfast.engine.mailing import Mailing
from holdfast.engine.pruning import Pruning
from holdfast.engine.reader import Reader
from holdfast.engine.recovery import Recovery
from holdfast.engine.verbs import Verbs
from holdfast.engine.waking import Waker
from holdfast.engine.worker import Worker
from holdfast.store.base import Store


class Opened:
    """From the opening of a runtime to its closing; a store that is open is given."""

    def __init__(self, store: Store, clock: Clock, *, concurrency: int, **settings: Any) -> None:
        """The settings are those of the engine."""
        self.store, self._concurrency = store, concurrency
        self.engine = engine = Engine(store, clock, concurrency=concurrency, **settings)
        self.reader = Reader(store, engine.registry, engine.wait_change)
        self.verbs = Verbs(engine, self.reader)
        self.mailing = Mailing(engine, self.reader)
        self.recovery, self.pruning = Recovery(engine), Pruning(engine)
        mailing = self.mailing
        self.waker = Waker(store, clock, self.recovery.wake, mailing.wants_its_child)
        self.following = Following(engine, self.reader, self.verbs, self.waker, mailing.children_ended, self.recovery)
        engine.children = Family(engine, self.reader, self.verbs, self.following.tend)
        engine.let_go, engine.unfit = self.waker.let_go, self.recovery.refuse
        self.worker: Worker | None = None
        self.pid = os.getpid()
        self.over = False
        """Whether nothing can be done with it any more."""
        self.signed_off = True
        """Whether others can take at once what this process had, when it was closed."""
        self._looking: asyncio.Task[None] | None = None
        self._hurry, self._grace_ends = asyncio.Event(), 0.0
        self._closing: asyncio.Task[None] | None = None

    def work(self, queues: tuple[str, ...] | None, poll: float) -> None:
        """Take up what nobody drives from now on, from these queues or from all."""
        engine = self.engine

        def describe() -> dict[str, Any]:
            names = () if self.over else engine.registry.names
            return {"queues": queues, "flows": sorted(names), "concurrency": self._concurrency}

        engine.works, engine.ownership.describe = True, describe
        wants_its_child = self.mailing.wants_its_child
        self.worker = Worker(engine, self.recovery, self.pruning, wants_its_child, queues=queues, poll=poll)
        self._looking = asyncio.ensure_future(self.worker.work())

    def prune(self) -> None:
        """Remove what has expired, beside everything else."""
        self._looking = asyncio.ensure_future(self.pruning.prune_quietly())

    async def close(self, grace: float) -> None:
        """Hand every live run back; called again, it waits no longer for their steps."""
        if self._closing is not None:
            self._hurry.set()
            await self.wait_closed()
            return
        if self._looking is not None:
            self._looking.cancel()
        self._grace_ends = self.engine.loop.time() + grace
        self._closing = closing = asyncio.ensure_future(self._close(grace))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            # Whoever gives up waiting wants it done at once, but done: nobody else can take what is still owned.
            self._hurry.set()
            await asyncio.wait({closing})
            raise

    @property
    def time_left(self) -> float:
        """How much of the grace time is left."""
        return 0.0 if self._hurry.is_set() else max(0.0, self._grace_ends - self.engine.loop.time())

    async def wait_closed(self) -> None:
        """Return when a closing that is under way is done."""
        if self._closing is not None and not self._closing.done():
            await asyncio.wait({self._closing})

    async def _close(self, grace: float) -> None:
        self.waker.stop()
        try:
            await self.engine.shutdown(grace, self._hurry)
        finally:
            self.signed_off = not self.engine.ownership.begun
            self.over = True
            await self.reader.drain()  # who asked for a run in this very moment is told that this process stops
            await unless_hurried(self.store.close(), self._hurry)
