"""What commits go through, so that an owner is known in the store before the first run that it owns, or with it.

A runtime that only reads leaves no trace. Where the store can write on this thread, the first new run and its owner are
one transaction, which writes nothing when the run is there already. Elsewhere the first new runs are looked for before
anything is written: those that are there are refused as the store would refuse them, and only for others does the
owner begin to say that it is alive. From then on commits go straight to the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import suppress

from holdfast.engine.ownership import Ownership
from holdfast.errors import StoreError
from holdfast.model import Commit, Head, Refusal, Reply
from holdfast.store.base import Store

_EXISTS, _OURS = Reply(Refusal.EXISTS), Reply()
_LARGE = 256 * 1024


class Introducing:
    """Writes to the store for one owner."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._store, self._ownership = store, ownership
        self.most_together = store.most_together
        self.read_entries, self.read_heads = store.read_entries, store.read_heads

    @property
    def knows_owner(self) -> bool:
        """Whether the store knows the owner as alive."""
        return self._ownership.begun

    def commit(self, batch: Sequence[Commit]) -> Awaitable[list[Reply]]:
        """As the store does it."""
        known = self.knows_owner or not any(map(_needs_its_owner, batch))
        return self._store.commit(batch) if known else self._first(batch)

    def commit_now(self, commit: Commit) -> list[Reply] | None:
        """Written on this thread where the store can do that, and knows the owner or gets to know it by this.

        None when not, or when it is so much that the loop would stand still for it.
        """
        for entry in commit.entries:
            if len(entry.body) > _LARGE:
                return None
        return self._store.try_commit([commit]) if self._ownership.begun else self._introduce(commit)

    def _introduce(self, commit: Commit) -> list[Reply] | None:
        if commit.create is None or not _needs_its_owner(commit) or not self._ownership.may_begin_here:
            return None
        try:
            replies = self._store.try_commit([commit], self._ownership.introduction())
        except StoreError:
            return None  # which is no matter if the run is there, as is looked for then
        if replies is not None and replies[0].refused is None:
            with suppress(RuntimeError):  # no thread can be started: whoever writes next is told
                self._ownership.introduced()
        return replies

    async def _first(self, batch: Sequence[Commit]) -> list[Reply]:
        runs = [commit.run for commit in batch if commit.create is not None]
        # Where the first one is new, mostly all are, and the store itself tells of those that are not.
        there = await self._there(runs[:1]) and await self._there(runs)
        known = [_known(commit, there.get(commit.run)) for commit in batch]
        new = [commit for commit, reply in zip(batch, known, strict=True) if reply is None]
        if any(map(_needs_its_owner, new)) or _OURS in known:
            await self._ownership.begin()
        replies = iter(list[Reply]())
        if new:
            replies = iter((self.commit_now(new[0]) if len(new) == 1 else None) or await self._store.commit(new))
        return [reply or next(replies) for reply in known]

    async def _there(self, runs: Sequence[str]) -> dict[str, Head]:
        return {head.id: head for head in await self._store.read_heads(runs) if head is not None}


def _known(commit: Commit, head: Head | None) -> Reply | None:
    """The reply to a commit whose run is there: it may have brought it in itself, and been said to have failed."""
    if head is None:
        return None
    return _OURS if commit.create is not None and commit.create.info == head.info else _EXISTS


def _needs_its_owner(commit: Commit) -> bool:
    """Whether it leaves the run with its owner: what goes into a queue belongs to nobody."""
    return commit.fence > 0
