"""Takes up what nobody drives, as long as there is room: what waits in a queue, what the dead left, what is due.

Looking once at the start is not enough: a run whose owner dies later, or whose lease runs out later, must be
found too. Changes in the store wake the worker at once; it looks now and then all the same, so nothing depends on that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from holdfast.core.transitions import RECOVERABLE, WAITS
from holdfast.engine.engine import Engine
from holdfast.engine.inbox import KINDS
from holdfast.engine.pruning import Pruning
from holdfast.engine.recovery import Recovery
from holdfast.engine.trouble import Trouble
from holdfast.model import Head, Health, Query

_PAGE = 200
_CHILDREN_EVERY = 10.0
_SOON = 0.002
_STUCK_AFTER = 10.0


class Worker:
    """Belongs to one runtime."""

    def __init__(
        self,
        engine: Engine,
        recovery: Recovery,
        pruning: Pruning,
        wants_its_child: Callable[[Head], Awaitable[bool]],
        *,
        queues: tuple[str, ...] | None,
        poll: float,
    ) -> None:
        """`wants_its_child` tells whether a run is to be taken up for a child; `queues` None are all."""
        self._engine, self._recovery, self._pruning, self._wants_its_child = engine, recovery, pruning, wants_its_child
        self._queues, self._poll = queues, poll
        self._tidy_at = self._children_at = 0.0
        self._parents_after: tuple[float, str] | None = None
        """The last of the waiting runs that were looked at; None when all of them were."""
        self._trouble = Trouble("could not look for runs to take up")
        self._freed: asyncio.Future[None] | None = None
        self.looked_at: float | None = None
        """When the worker last looked and the store answered, on the monotonic clock."""
        engine.turns.freed = self._look_soon

    async def work(self) -> None:
        """Take up what is found, until cancelled."""
        loop, seen, rest = asyncio.get_running_loop(), 0, _SOON
        while True:
            try:
                if self.looked_at is None:
                    await self._engine.ownership.begin()  # who waits for work is seen to do so
                found, looked = await self._look(), loop.time()
                await self._tidy(looked)
                self.looked_at = time.monotonic()
                self._trouble.over()
                seen = await self._wait(seen)
                # Who was idle looks at once; what changes all the time and comes to nothing is looked at less often.
                rest = _SOON if found else min(rest * 2, self._poll / 10)
                await asyncio.sleep(looked + rest - loop.time())
            except (
                Exception
            ) as error:  # a store of the user's may raise anything, and whoever waits would wait for ever
                self._trouble.met(error)
                await asyncio.sleep(self._poll)

    def health(self, concurrency: int) -> Health:
        """How it is; safe to ask from any thread."""
        looked = None if self.looked_at is None else time.monotonic() - self.looked_at
        stuck = looked is None or looked > _STUCK_AFTER
        state = "stopping" if self._engine.closing else "stuck" if stuck else "working"
        return Health(
            well=state == "working",
            state=state,
            id=self._engine.ownership.id,
            name=self._engine.ownership.owner.name,
            queues=self._queues,
            runs=len(self._engine.live),
            concurrency=concurrency,
            looked=looked,
        )

    async def _wait(self, seen: int) -> int:
        """Return when there may be more to claim, when a turn is free again, or after a while."""
        self._freed = freed = asyncio.get_running_loop().create_future()
        if self._engine.turns.free <= 0:
            # Whatever comes, there is no room for it.
            await asyncio.wait({freed}, timeout=self._poll)
            return seen
        change = asyncio.ensure_future(self._engine.store.wait_change(seen, self._poll, ready=True))
        try:
            await asyncio.wait({change, freed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            freed.cancel()
            if not change.done():
                change.cancel()
        return change.result() if change.done() and not change.cancelled() else seen

    def _look_soon(self) -> None:
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)

    async def _look(self) -> bool:
        """Take up all that there is room for; whether anything was. What has begun already goes first."""
        await self._engine.custody.release()
        if not (names := self._engine.registry.names):
            return False
        now = self._engine.clock.now()
        mine = Query(flows=names, queues=self._queues, in_turn=True, limits=self._engine.registry.limits)
        taken = await self._claim(replace(mine, states=WAITS, due_by=now))
        taken += await self._claim(replace(mine, states=WAITS, has_mail=True, mail_kinds=KINDS))
        taken += await self._claim(replace(mine, states=RECOVERABLE, idle_by=now))
        return taken > 0

    async def _claim(self, query: Query) -> int:
        taken = 0
        while (room := min(self._engine.turns.free, _PAGE)) > 0 and not self._engine.closing:
            query = replace(query, limit=room, but=(*self._recovery.left_alone, *self._engine.live))
            found = await self._engine.to_its_end(self._take_up(query))
            taken += found
            if found < room:
                break
        return taken

    async def _take_up(self, query: Query) -> int:
        claims = await self._engine.custody.claim(query)
        for claim in claims:
            await self._recovery.take(claim)
        return len(claims)

    async def _tidy(self, now: float) -> None:
        """What need not be done at every look."""
        if now < self._tidy_at:
            return
        self._tidy_at = now + self._poll
        await self._recovery.warn_of_strangers()
        await self._pruning.prune()
        if now >= self._children_at:
            await self._wake_parents()
            if self._parents_after is None:
                self._children_at = now + _CHILDREN_EVERY

    async def _wake_parents(self) -> None:
        """Take up those of whose children one has ended without telling: its process died in between.

        A page of the runs that wait at a time: what can be claimed does not wait until all of them were looked at.
        """
        names, after = self._engine.registry.names, self._parents_after
        query = Query(states=WAITS, flows=names, queues=self._queues, limit=_PAGE, after=after)
        heads = await self._engine.store.list_heads(query)
        self._parents_after = (heads[-1].created_at, heads[-1].id) if len(heads) == _PAGE else None
        but = set(self._recovery.left_alone)
        parents = [head for head in heads if "child run" in (head.waiting_for or "") and head.id not in but]
        ready = [head for head in parents if await self._wants_its_child(head)]
        if ready and (room := self._engine.turns.free) > 0:
            await self._recovery.wake(ready[:room])
