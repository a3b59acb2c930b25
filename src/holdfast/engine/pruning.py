"""Removes the history that has expired by the policies' `ttl`."""

from __future__ import annotations

import logging

from holdfast.core.checksum import seal, verify
from holdfast.core.codec import dumps
from holdfast.core.history import last_point, rebased
from holdfast.core.transitions import ENDED, UNOWNED
from holdfast.engine.engine import Engine
from holdfast.engine.heads import read_apart
from holdfast.errors import StoreDamagedError
from holdfast.model import Claim, Commit, Head, HeadChange, Kind, Query

log = logging.getLogger("holdfast")

_EVERYTHING = 1_000_000_000


class Pruning:
    """Belongs to one runtime."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._damaged: dict[str, int] = {}
        """By run: the last entry of its log when that was found to be damaged."""

    async def prune_quietly(self) -> None:
        """Prune once, as a store is opened; trouble is left for whoever writes next to report."""
        try:
            await self.prune()
        except Exception as error:  # as in Worker.work
            log.warning("holdfast: could not remove expired history: %s", error)

    async def prune(self) -> int:
        """Remove the history that has expired; how many runs lost some."""
        now = self._engine.clock.now()
        expired = await self._engine.store.list_heads(Query(expired_by=now, limit=_EVERYTHING))
        expired = [head for head in expired if self._damaged.get(head.id) != head.seq]  # told, and as damaged as before
        needed = await self._unfinished({head.parent for head in expired if head.parent is not None})
        ids = tuple(head.id for head in expired if not head.owned and head.parent not in needed)
        # Asked for again as it is claimed: what was rewound meanwhile, and ended anew, has not expired.
        query = Query(ids=ids, states=UNOWNED, expired_by=now, limit=len(ids))
        return await self._engine.to_its_end(self._prune(query)) if ids else 0

    async def _unfinished(self, runs: set[str]) -> set[str]:
        """Those of these runs that have not ended: they may still ask for the results of their children.

        One that is damaged may too, once it is mended.
        """
        ids = sorted(runs)
        found = zip(ids, await read_apart(self._engine.store, ids), strict=True)
        return {run for run, head in found if not (head is None or (isinstance(head, Head) and head.status in ENDED))}

    async def _prune(self, query: Query) -> int:
        custody = self._engine.custody
        claims = await custody.claim(query)
        pruned = 0
        try:
            while claims:
                try:
                    await self._drop_expired(claims[-1])
                    pruned += 1
                except StoreDamagedError as error:
                    # As with recovery: a damaged run is reported and left alone; the others go on.
                    self._damaged[claims[-1].head.id] = claims[-1].head.seq
                    log.warning("holdfast: the history of run %s was not removed: %s", claims[-1].head.id, error)
                    await custody.give_back(claims[-1])
                claims.pop()
        finally:
            for claim in claims:
                custody.add_claim(claim)
        return pruned

    async def _drop_expired(self, claim: Claim) -> None:
        """A run that has ended keeps its head alone; any other keeps its last checkpoint."""
        head = claim.head
        if not claim.entries:
            raise StoreDamagedError(head.id, None, "the run has no log")
        last = claim.entries[-1]
        verify(head.id, last)  # sealed anew, damage would pass for what was written
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
