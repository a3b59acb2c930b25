"""What commits go through, so that an owner is known in the store before the first run that it owns.

A runtime that only reads leaves no trace. So the first new runs are looked for before anything is written: those that
are there already are refused as the store would refuse them, and only for others does the owner begin to say that
it is alive. From then on commits go straight to the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from holdfast.engine.ownership import Ownership
from holdfast.model import Commit, Refusal, Reply
from holdfast.store.base import Store

_EXISTS = Reply(Refusal.EXISTS)


class Introducing:
    """Writes to the store for one owner."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._store, self._ownership = store, ownership
        self.most_together = store.most_together
        self.read_entries = store.read_entries

    @property
    def knows_owner(self) -> bool:
        """Whether the store knows the owner as alive."""
        return self._ownership.begun

    def commit(self, batch: Sequence[Commit]) -> Awaitable[list[Reply]]:
        """As the store does it."""
        known = self.knows_owner or not any(map(_needs_its_owner, batch))
        return self._store.commit(batch) if known else self._first(batch)

    def try_commit(self, batch: Sequence[Commit]) -> list[Reply] | None:
        """As the store does it; None as well when the owner is not known yet."""
        return self._store.try_commit(batch) if self.knows_owner else None

    async def _first(self, batch: Sequence[Commit]) -> list[Reply]:
        heads = await self._store.read_heads([commit.run for commit in batch if commit.create is not None])
        there = {head.id for head in heads if head is not None}
        new = [commit for commit in batch if commit.run not in there]
        if any(map(_needs_its_owner, new)):
            await self._ownership.begin()
        replies = iter(await self._store.commit(new)) if new else iter(())
        return [_EXISTS if commit.run in there else next(replies) for commit in batch]


def _needs_its_owner(commit: Commit) -> bool:
    """Whether it leaves the run with its owner: what goes into a queue belongs to nobody."""
    return commit.fence > 0
