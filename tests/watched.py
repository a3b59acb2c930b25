"""A store that counts what is written and fails on demand, and a way to die like a killed process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import Runtime
from holdfast.errors import StoreUnavailableError
from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Reply
from holdfast.store.base import Store
from holdfast.testing import ManualClock

LEASE = 15.0


class WatchedStore(Store):
    """Passes everything on to another store."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.batches: list[list[Commit]] = []
        """What was written, as it was grouped."""
        self.refuse: Callable[[Commit], bool] = lambda commit: False
        """Which commits fail as on a full disk."""
        self.severed = False
        """Whether nothing reaches the store any more."""
        self.touched = False
        """Whether anything at all was asked of the store since this was last set to False."""

    @property
    def commits(self) -> int:
        """How many times the store was written to."""
        return len(self.batches)

    def _pass(self) -> Store:
        self.touched = True
        if self.severed:
            raise StoreUnavailableError("the store is out of reach")
        return self.inner

    def _written(self, batch: Sequence[Commit]) -> None:
        if any(self.refuse(commit) for commit in batch):
            raise StoreUnavailableError("no space left on device")

    def _count(self, batch: Sequence[Commit]) -> None:
        written = [c for c in batch if c.entries or c.create or c.change or c.take or c.rebase]
        if written:
            self.batches.append(written)

    async def open(self) -> None:
        await self._pass().open()

    async def close(self) -> None:
        await self.inner.close()

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        store = self._pass()
        self._written(batch)
        replies = await store.commit(batch)
        self._count(batch)
        return replies

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        store = self._pass()
        self._written(batch)
        replies = store.try_commit(batch, *how)
        if replies is not None:
            self._count(batch)
        return replies

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        return await self._pass().claim_runs(query, owner)

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        return await self._pass().read_heads(ids)

    async def list_heads(self, query: Query) -> list[Head]:
        return await self._pass().list_heads(query)

    async def read_entries(self, run: str, **place: Any) -> list[Entry]:
        return await self._pass().read_entries(run, **place)

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        return await self._pass().post_mail(run, mail)

    async def delete_run(self, run: str) -> bool:
        return await self._pass().delete_run(run)

    def beat(self, owner: Owner, lease: float) -> None:
        self._pass().beat(owner, lease)

    async def retire_owner(self, owner: str) -> None:
        await self._pass().retire_owner(owner)

    async def list_owners(self) -> list[Owner]:
        return await self._pass().list_owners()

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        return await self._pass().wait_change(seen, timeout, ready=ready)

    async def inspect(self) -> list[tuple[str | None, str]]:
        return await self._pass().inspect()


async def kill(runtime: Runtime, store: WatchedStore, clock: ManualClock) -> None:
    """End a runtime as a kill does: nothing more reaches the store, and its lease runs out."""
    store.severed = True
    await asyncio.gather(runtime.close(), runtime.close())
    clock.advance(LEASE + 1)
