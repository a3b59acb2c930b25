"""Runs that nobody drives any more are found and taken up; what has expired is removed.

Looking once at the start is not enough: a run whose owner dies later, or whose lease runs out
later, must be found too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from holdfast.core.checksum import seal
from holdfast.core.codec import dumps
from holdfast.core.history import last_point, rebased
from holdfast.core.transitions import ENDED, RECOVERABLE, UNOWNED, WAITS
from holdfast.engine.engine import Engine
from holdfast.engine.live import LiveRun
from holdfast.errors import StoreDamagedError, StoreError
from holdfast.model import Claim, Commit, Head, HeadChange, Kind, Query

log = logging.getLogger("holdfast")

_PAGE = 200
_EVERYTHING = 1_000_000_000
_CHILDREN_EVERY = 10


class Recovery:
    """Looks after the runs of one store with the flows of one program."""

    def __init__(self, engine: Engine, children_ended: Callable[[Head], Awaitable[bool]]) -> None:
        """`children_ended` tells whether a child that the run waits for has ended."""
        self._engine, self._children_ended = engine, children_ended
        self._warned: set[str] = set()
        self._looks = 0

    async def interrupted(self, limit: int = _EVERYTHING) -> list[Head]:
        """The runs that could be taken up here: nobody has them, and the program has their flow."""
        names = self._engine.registry.names
        return await self._engine.store.list_heads(Query(states=RECOVERABLE, flows=names, limit=limit)) if names else []

    async def recover(self, limit: int = _EVERYTHING) -> list[LiveRun]:
        """Take up what nobody drives, oldest first, at most `limit` of them."""
        return await self._engine.to_its_end(self._recover(limit))

    async def _recover(self, limit: int) -> list[LiveRun]:
        await self._warn_of_strangers()
        ready = [head for head in await self.interrupted() if self._has_step(head)]
        ready = [head for head in reversed(ready) if head.id not in self._engine.live][:limit]
        return await self._take_up(ready, RECOVERABLE)

    async def _take_up(self, ready: list[Head], states: tuple[tuple[str, bool | None], ...]) -> list[LiveRun]:
        taken: list[LiveRun] = []
        for start in range(0, len(ready), _PAGE):
            ids = tuple(head.id for head in ready[start : start + _PAGE])
            # The states are asked for again: what has been paused or finished meanwhile is left alone.
            query = Query(ids=ids, states=states, flows=self._engine.registry.names, limit=len(ids))
            claims = await self._engine.custody.claim(query) if not self._engine.closing else []
            for claim in reversed(claims):
                live = await self._take(claim)
                if live is not None:
                    taken.append(live)
        return taken

    async def wake(self, heads: list[Head]) -> list[LiveRun]:
        """Take up those of these runs that still wait and that this program can go on with."""
        ready = [head for head in heads if self._engine.registry.has(head.flow) and self._has_step(head)]
        ready = [head for head in ready if head.id not in self._engine.live]
        return await self._engine.to_its_end(self._take_up(ready, WAITS)) if ready else []

    async def _wake_all(self, limit: int) -> None:
        """Take up every run that waits and is due, or for which something has come."""
        names = self._engine.registry.names
        if not names:
            return
        waiting, store = Query(states=WAITS, flows=names, limit=limit), self._engine.store
        due = await store.list_heads(replace(waiting, due_by=self._engine.clock.now()))
        due += await store.list_heads(replace(waiting, has_mail=True))
        self._looks += 1
        if self._looks % _CHILDREN_EVERY == 1:
            heads = await store.list_heads(replace(waiting, limit=_EVERYTHING))
            parents = [head for head in heads if "child run" in (head.waiting_for or "")]
            due += [head for head in parents if await self._children_ended(head)]
        await self.wake(list({head.id: head for head in due}.values())[:limit])

    async def _take(self, claim: Claim) -> LiveRun | None:
        try:
            return await self._engine.take(claim, self._engine.writer(claim))
        except Exception as error:  # whatever a tampered head makes fail
            # A damaged run is reported and left alone; the others go on.
            self._warn(claim.head.id, f"run {claim.head.id} was not resumed: {error}")
            await self._engine.custody.give_back(claim)
            return None

    async def _warn_of_strangers(self) -> None:
        """Say, once for each flow, that runs of it wait for a program that has it."""
        known = self._engine.registry.names
        for head in await self._engine.store.list_heads(Query(states=RECOVERABLE, limit=_PAGE)):
            if head.flow not in known:
                message = (
                    f"run {head.id} was not resumed: flow {head.flow!r} is not registered here. "
                    f"Its runs wait for a program that registers it"
                )
                self._warn(f"flow {head.flow}", message)

    def _has_step(self, head: Head) -> bool:
        flow, _ = self._engine.registry.flow(head.id, head.flow)
        try:
            cursor = msgspec.json.decode(head.cursor)
            name = cursor["next"]
        except (ValueError, TypeError, KeyError):
            return True  # damaged: found out, and reported, when it is taken up
        if name is None or flow.next_step(cursor) is not None:
            return True
        self._warn(
            head.id,
            f"run {head.id} was not resumed: flow {head.flow!r} has no step {name!r} any more "
            f"(it has: {', '.join(flow.step_names)})",
        )
        return False

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("holdfast: %s", message)

    async def keep_looking(self, every: float) -> None:
        """Take up what is found, as long as there is room for it, and look again."""
        while True:
            try:
                await self._engine.custody.release()
                room = self._engine.turns.free
                if room > 0:
                    await self.recover(limit=room)
                    await self._wake_all(room)
                await self.prune()
            except StoreError as error:
                log.warning("holdfast: could not look for interrupted runs: %s", error)
            await asyncio.sleep(every)

    async def prune_quietly(self) -> None:
        """Prune once, as a store is opened; trouble is left for whoever writes next to report."""
        try:
            await self.prune()
        except StoreError as error:
            log.warning("holdfast: could not remove expired history: %s", error)

    async def prune(self) -> int:
        """Remove the history that has expired; how many runs lost some."""
        expired = await self._engine.store.list_heads(Query(expired_by=self._engine.clock.now(), limit=_EVERYTHING))
        ids = tuple(head.id for head in expired if not head.owned)
        return await self._engine.to_its_end(self._prune(ids)) if ids else 0

    async def _prune(self, ids: tuple[str, ...]) -> int:
        claims = await self._engine.custody.claim(Query(ids=ids, states=UNOWNED, limit=len(ids)))
        pruned = 0
        while claims:
            try:
                await self._drop_expired(claims[-1])
                pruned += 1
            except StoreDamagedError as error:
                # As with recovery: a damaged run is reported and left alone; the others go on.
                self._warn(claims[-1].head.id, f"the history of run {claims[-1].head.id} was not removed: {error}")
                await self._engine.custody.give_back(claims[-1])
            except StoreError:
                for claim in claims:
                    await self._engine.custody.give_back(claim)
                raise
            claims.pop()
        return pruned

    async def _drop_expired(self, claim: Claim) -> None:
        """A run that has ended keeps its head alone; any other keeps its last checkpoint."""
        head = claim.head
        last = claim.entries[-1]
        if head.status in ENDED:
            body = dumps({"expired": True}) if last.kind == Kind.COMPLETED else last.body
            kept = seal(head.id, last.seq, last.kind, last.fence, last.at, last.cursor, body)
            base = kept.seq
        else:
            point = last_point(head.id, claim.entries)
            kept, base = rebased(head.id, point), point.base
        change = HeadChange(owner=None, attempt=head.attempt - 1, expires_at=None, floor=kept.seq, base=base)
        await self._engine.committer.commit(
            Commit(run=head.id, owner=self._engine.ownership.id, fence=head.fence, rebase=kept, change=change)
        )
