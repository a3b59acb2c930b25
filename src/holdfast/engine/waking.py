"""Runs that wait are taken up when they are due, or when something has come for them.

Every runtime looks after the runs that it let go itself, and those that it was asked to follow; one that
recovers looks after all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.clock import Clock
from holdfast.core.transitions import WAITS
from holdfast.engine.inbox import KINDS
from holdfast.engine.trouble import Trouble
from holdfast.model import Head, Query
from holdfast.store.base import Store

POLL = 1.0
PAUSE = 0.02
SWEEP_EACH = 0.001
CHILDREN_EVERY = 2.0
PARENTS = 200


class Waker:
    """Belongs to one engine."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        take: Callable[[list[Head]], Awaitable[Any]],
        wants_its_child: Callable[[Head], Awaitable[bool]],
    ) -> None:
        """`take` claims and drives those that still wait; `wants_its_child` tells whether a child makes it due."""
        self._store, self._clock, self._take, self._wants_its_child = store, clock, take, wants_its_child
        self._watched: dict[str, float | None] = {}
        self._renewed: set[str] = set()
        """Those that were put down while the store was read: what it said of them is old."""
        self._later: dict[str, float] = {}
        """By run, on the loop's clock: those that were tried just now and are left alone for a while."""
        self._sweep_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._poke: asyncio.Future[None] | None = None
        self._children_at = 0.0
        self._parents = 0
        """How many of those who wait for children were looked at in this round."""

    def watch(self, run: str, due: float | None) -> None:
        """Look after this run, which is due then; None when only something that comes makes it due."""
        if self._stopped:
            return  # whoever comes next looks after it
        known = run in self._watched and self._watched[run] == due
        self._watched[run] = due
        self._renewed.add(run)
        if self._task is None:
            self._task = asyncio.ensure_future(self._look_after())
        elif not known and self._poke is not None and not self._poke.done():
            self._poke.set_result(None)

    def let_go(self, run: str, due: float | None) -> None:
        """The same for a run that has just been let go here: nobody has tried to take it up since."""
        self._later.pop(run, None)
        self.watch(run, due)

    def stop(self) -> None:
        """Look after nothing any more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _look_after(self) -> None:
        seen, trouble = 0, Trouble("could not look for runs that are due")
        while self._watched:
            try:
                seen = await self._wait(seen)
                await self._look()
                trouble.over()
            except Exception as error:  # as in Worker.work
                trouble.met(error)
                await asyncio.sleep(POLL)
            await asyncio.sleep(PAUSE)
        self._task = None

    async def _wait(self, seen: int) -> int:
        """Return when something has changed, when the first run is due, or when there is one more."""
        self._poke = asyncio.get_running_loop().create_future()
        change = asyncio.ensure_future(self._store.wait_change(seen, POLL))
        others: set[asyncio.Future[Any]] = {self._poke}
        first = min((self._watched[run] or 0.0 for run in self._due_some_time()), default=None)
        if first is not None:
            others.add(asyncio.ensure_future(self._clock.sleep(first - self._clock.now())))
        try:
            await asyncio.wait({change, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in (change, *others):
                other.cancel()
        return change.result() if change.done() and not change.cancelled() else seen

    def _due_some_time(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        self._later = {run: until for run, until in self._later.items() if until > now}
        return [run for run, due in self._watched.items() if due is not None and run not in self._later]

    async def _look(self) -> None:
        """Take up what is due. However many are watched, only what has come to something is read."""
        ready = await self._sweep()
        now = self._clock.now()
        due = tuple(run for run in self._due_some_time() if (self._watched[run] or 0.0) <= now)
        if due:
            ready += await self._store.list_heads(Query(ids=due, states=WAITS, due_by=now, limit=len(due)))
        ids = tuple(run for run in self._watched if run not in self._later)
        if ids:
            mailed = Query(ids=ids, states=WAITS, has_mail=True, mail_kinds=KINDS, limit=len(ids))
            ready += await self._store.list_heads(mailed)
        later = asyncio.get_running_loop().time() + POLL
        # Whoever cannot be taken up, because somebody else was quicker or it is damaged, is not tried all the time.
        self._later.update(dict.fromkeys((*due, *(head.id for head in ready)), later))
        if ready:
            await self._take(list({head.id: head for head in ready}.values()))

    async def _sweep(self) -> list[Head]:
        """Forget who does not wait any more, once in a while; those of whose children one has ended unseen."""
        now, ids = asyncio.get_running_loop().time(), tuple(self._watched)
        if now < self._sweep_at or not ids:
            return []
        self._sweep_at = now + max(POLL, SWEEP_EACH * len(ids))
        self._renewed.clear()
        waiting = {h.id: h for h in await self._store.list_heads(Query(ids=ids, states=WAITS, limit=len(ids)))}
        for run in ids:
            if run in self._renewed:
                waiting.pop(run, None)
            elif run not in waiting:
                self._watched.pop(run, None)  # somebody has it, or it has ended
            else:
                self._watched[run] = waiting[run].wake_at
        return await self._with_ended_children(list(waiting.values()))

    async def _with_ended_children(self, heads: list[Head]) -> list[Head]:
        """Those of whose children one has ended without telling: its process died in between.

        Some of them at a time: what is due does not wait until the logs of all were read.
        """
        now = asyncio.get_running_loop().time()
        if now < self._children_at:
            return []
        self._children_at = now + CHILDREN_EVERY
        parents = [head for head in heads if "child run" in (head.waiting_for or "")]
        some = parents[self._parents : self._parents + PARENTS]
        self._parents = self._parents + PARENTS if self._parents + PARENTS < len(parents) else 0
        return [head for head in some if await self._wants_its_child(head)]
