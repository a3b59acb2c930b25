"""Runs that this process owns, or may own, without driving them: they are given up as soon as possible.

A live owner keeps everybody else away from a run. So whatever is claimed or created here is either driven
or lands here: a run that left when the store could not be written, and one of which it is not known
whether it is ours, because the reply to its claim or to its creation was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.core.transitions import UNOWNED
from holdfast.engine.committer import Committer
from holdfast.engine.heads import read_apart
from holdfast.engine.ownership import Ownership
from holdfast.engine.writer import RunWriter
from holdfast.errors import StoreError
from holdfast.model import Claim, Head, Query
from holdfast.store.base import Store

_EVERYTHING = 1_000_000_000
_SURE, _LATE = 2.0, 20.0  # seconds


class Custody:
    """Belongs to one engine."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        clock: Clock,
        ownership: Ownership,
        *,
        drives: Callable[[str], bool],
        added: Callable[[], None],
    ) -> None:
        """`drives` tells whether a run is live here; `added` is called when there is something to give up."""
        self._store, self._committer, self._clock, self._ownership = store, committer, clock, ownership
        self._drives, self._added = drives, added
        self._orphans: list[RunWriter] = []
        self._doubtful: set[str] = set()
        self._idle: dict[tuple[str, int], float] = {}
        """By run and fence, on the loop's clock: since when it was seen to be ours and undriven."""
        self._look_at = self._look_until = 0.0
        # What was just claimed must not be taken for a doubtful one before whoever claimed it knows.
        self._one_at_a_time = asyncio.Lock()

    async def claim(self, query: Query) -> list[Claim]:
        """The runs that match and are owned by this process from now on."""
        await self._ownership.begin()
        async with self._one_at_a_time:
            try:
                claims = await self._store.claim_runs(query, self._ownership.id)
            except StoreError:
                self.doubt(*query.ids or ())
                raise
            self._doubtful.difference_update(claim.head.id for claim in claims)
            return claims

    async def claim_one(self, run: str) -> Claim | None:
        """The run, owned by this process from now on; None when somebody else has it."""
        claims = await self.claim(Query(ids=(run,), states=UNOWNED, limit=1))
        return claims[0] if claims else None

    def doubt(self, *runs: str) -> None:
        """Nobody knows whether these, or others, are ours: the store is asked later, and for a while."""
        self._doubtful.update(runs)
        self._look_until = self._committer.loop.time() + _LATE
        self._added()

    def add(self, writer: RunWriter) -> None:
        """Give this run up when the store can be written."""
        self._orphans.append(writer)
        self._added()

    def add_claim(self, claim: Claim) -> None:
        """Give a claimed run up as it was, when the store can be written: the claim is not counted as an attempt."""
        self.add(self._writer(claim.head))

    @contextmanager
    def giving_up(self, writer: RunWriter) -> Iterator[None]:
        """A claimed run that cannot be gone on with is given up as soon as the store can be written."""
        try:
            yield
        except Exception:  # not only of the store: a tampered head makes anything fail
            self.add(writer)
            raise

    async def give_back(self, claim: Claim) -> None:
        """Give a claimed run up as it was: the claim is not counted as an attempt."""
        writer = self._writer(claim.head)
        try:
            await writer.release()
        except StoreError:
            self.add(writer)

    def _writer(self, head: Head) -> RunWriter:
        # Its position may be damaged, and is not needed to give it up.
        return RunWriter(self._committer, self._clock, replace(head, attempt=head.attempt - 1, cursor=b"null"), None)

    async def release(self, run: str | None = None) -> None:
        """Give up what can be, if this run is among it or none is named. What fails is tried again later."""
        if not self._orphans and not self._doubtful and not self._look_until:
            return
        if run is not None and run not in self._doubtful and all(writer.run != run for writer in self._orphans):
            return
        async with self._one_at_a_time:
            try:
                for writer in list(self._orphans):
                    await writer.release()
                    self._orphans.remove(writer)
                await self._settle_doubts()
                await self._look_for_idle()
            except StoreError:
                pass

    async def _look_for_idle(self) -> None:
        """Give up what this process owns and does not drive.

        A claim of whatever there was tells no names when its reply is lost, and what was sent before the connection
        broke may take effect a while after. What was claimed just now is not driven yet either: only what is seen so
        again after a while is meant.
        """
        now = self._committer.loop.time()
        if now < self._look_at or not self._look_until:
            return
        heads = await self._store.list_heads(Query(owner=self._ownership.id, limit=_EVERYTHING))
        idle = {(head.id, head.fence): head for head in heads if not self._drives(head.id)}
        since = {key: self._idle.get(key, now) for key in idle}
        for key, head in idle.items():
            if now - since[key] >= _SURE:
                await self._writer(head).release()
                del since[key]
        self._idle, self._look_at = since, now + _SURE / 2
        if now >= self._look_until and not since:
            self._look_until = 0.0

    async def _settle_doubts(self) -> None:
        runs = tuple(self._doubtful)
        for run, head in zip(runs, await read_apart(self._store, runs), strict=True):
            # One that is damaged is not given up: nobody could take it.
            if isinstance(head, Head) and head.owner == self._ownership.id and not self._drives(run):
                await self._writer(head).release()
            self._doubtful.discard(run)
