"""Runs that nobody drives any more are found and taken up; what has expired is removed.

Looking once at the start is not enough: a run whose owner dies later, or whose lease runs out
later, must be found too.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from holdfast.core.checksum import seal
from holdfast.core.codec import dumps
from holdfast.core.history import last_point, rebased
from holdfast.core.transitions import ENDED, RECOVERABLE, UNOWNED
from holdfast.engine.engine import Engine, LiveRun
from holdfast.errors import HoldfastError, StoreError
from holdfast.model import Claim, Commit, Head, HeadChange, Kind, Query

log = logging.getLogger("holdfast")

_PAGE = 200
_EVERYTHING = 1_000_000_000


class Recovery:
    """Looks after the runs of one store with the flows of one program."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._warned: set[str] = set()

    async def interrupted(self, limit: int = _EVERYTHING) -> list[Head]:
        """The runs that could be taken up here: nobody has them, and the program has their flow."""
        names = self._engine.registry.names
        return await self._engine.store.list_heads(Query(states=RECOVERABLE, flows=names, limit=limit)) if names else []

    async def recover(self, limit: int = _EVERYTHING) -> list[LiveRun]:
        """Take up what nobody drives, oldest first, at most `limit` of them."""
        await self._warn_of_strangers()
        ready = [head for head in await self.interrupted() if self._has_step(head)]
        ready = [head for head in reversed(ready) if head.id not in self._engine.live][:limit]
        taken: list[LiveRun] = []
        if not ready:
            return taken
        await self._engine.ownership.begin()
        for start in range(0, len(ready), _PAGE):
            ids = tuple(head.id for head in ready[start : start + _PAGE])
            # The states are asked for again: what has been paused or finished meanwhile is left alone.
            query = Query(ids=ids, states=RECOVERABLE, flows=self._engine.registry.names, limit=len(ids))
            claims = await self._engine.store.claim_runs(query, self._engine.ownership.id)
            for claim in reversed(claims):
                live = await self._take(claim)
                if live is not None:
                    taken.append(live)
        return taken

    async def _take(self, claim: Claim) -> LiveRun | None:
        try:
            return await self._engine.take(claim, self._engine.writer(claim))
        except HoldfastError as error:
            # A damaged run is reported and left alone; the others go on.
            self._warn(claim.head.id, f"run {claim.head.id} was not resumed: {error}")
            await self._give_back(claim)
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
        cursor = msgspec.json.decode(head.cursor)
        if cursor["next"] is None or flow.next_step(cursor) is not None:
            return True
        self._warn(
            head.id,
            f"run {head.id} was not resumed: flow {head.flow!r} has no step {cursor['next']!r} any more "
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
                room = self._engine.free_slots
                if room > 0:
                    await self.recover(limit=room)
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
        store, engine = self._engine.store, self._engine
        expired = await store.list_heads(Query(expired_by=engine.clock.now(), limit=_EVERYTHING))
        expired = [head for head in expired if not head.owned]
        if not expired:
            return 0
        await engine.ownership.begin()
        ids = tuple(head.id for head in expired)
        claims = await store.claim_runs(Query(ids=ids, states=UNOWNED, limit=len(ids)), engine.ownership.id)
        for claim in claims:
            await self._drop_expired(claim)
        return len(claims)

    async def _drop_expired(self, claim: Claim) -> None:
        """A run that has ended keeps its head alone; any other keeps its last checkpoint."""
        head = claim.head
        last = claim.entries[-1]
        if head.status in ENDED:
            body = dumps({"expired": True}) if last.kind == Kind.COMPLETED else last.body
            kept = seal(head.id, last.seq, last.kind, last.fence, last.at, last.cursor, body)
        else:
            kept = rebased(head.id, last_point(head.id, claim.entries))
        change = HeadChange(owner=None, attempt=head.attempt - 1, expires_at=None, floor=kept.seq, base=kept.seq)
        await self._engine.committer.commit(
            Commit(run=head.id, owner=self._engine.ownership.id, fence=head.fence, rebase=kept, change=change)
        )

    async def _give_back(self, claim: Claim) -> None:
        change = HeadChange(owner=None, attempt=claim.head.attempt - 1)
        await self._engine.committer.commit(
            Commit(run=claim.head.id, owner=self._engine.ownership.id, fence=claim.head.fence, change=change)
        )
