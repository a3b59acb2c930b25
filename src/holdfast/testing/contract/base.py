"""What the parts of the suite share: the fixtures and a few verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from holdfast.model import Claim, Commit, Entry, Head, Mail, Query, Reply
from holdfast.store.base import Store
from holdfast.testing.build import ALICE, commit, owner
from holdfast.testing.clock import ManualClock

MakeStore = Callable[[], Store]

LEASE = 15.0


class ContractBase:
    """The fixtures of the suite. A subclass gives `make_store` and `capabilities`."""

    pytestmark = pytest.mark.asyncio
    capabilities: frozenset[str] = frozenset()

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock that the stores under test measure leases with."""
        return ManualClock()

    @pytest.fixture
    def make_store(self, clock: ManualClock) -> MakeStore:
        """Makes a new, unopened store object on the same database each time it is called."""
        raise NotImplementedError("give a `make_store` fixture in the subclass")

    @pytest_asyncio.fixture
    async def store(self, make_store: MakeStore) -> AsyncIterator[Store]:
        """An opened, empty store."""
        store = make_store()
        await store.open()
        yield store
        await store.close()

    @pytest_asyncio.fixture
    async def other(self, store: Store, make_store: MakeStore) -> AsyncIterator[Store]:
        """A second opened store object on the same database, as another process would have it."""
        self.need(store, "shared")
        other = make_store()
        await other.open()
        yield other
        await other.close()

    async def pass_time(self, clock: ManualClock, seconds: float) -> None:
        """Let time pass on the store's clock. Override it where that is a server's."""
        clock.advance(seconds)

    def need(self, store: Store, capability: str) -> None:
        """Skip the test unless the store declares this."""
        if capability not in store.capabilities:
            pytest.skip(f"not a {capability} store")

    async def write(self, store: Store, *batch: Commit) -> list[Reply]:
        """Commit, and make sure that everything was accepted."""
        replies = await store.commit(batch)
        assert [reply.refused for reply in replies] == [None] * len(batch)
        return replies

    async def head(self, store: Store, run: str = "run") -> Head:
        """The head of a run that must exist."""
        (found,) = await store.read_heads([run])
        assert found is not None
        return found

    async def mail(self, store: Store, run: str = "run", by: str = ALICE, fence: int = 1) -> list[Mail]:
        """What waits in the inbox of a run, asked for by its owner."""
        (reply,) = await self.write(store, commit(run, owner=by, fence=fence))
        return list(reply.mail)

    async def all_of(self, store: Store, run: str = "run") -> tuple[Head, list[Entry], list[Mail]]:
        """Everything a store knows of a run that somebody owns."""
        found = await self.head(store, run)
        assert found.owner is not None
        mail = await self.mail(store, run, found.owner, found.fence)
        return found, await store.read_entries(run), mail

    async def seqs(self, store: Store, run: str = "run") -> list[int]:
        """The seqs of a run's log, in the order the store gives them."""
        return [entry.seq for entry in await store.read_entries(run)]

    async def claim(self, store: Store, by: str, run: str = "run") -> Claim | None:
        """Try to claim one run."""
        claims = await store.claim_runs(Query(ids=(run,)), by)
        assert len(claims) <= 1
        return claims[0] if claims else None

    def beat(self, store: Store, id: str = ALICE, lease: float = LEASE) -> None:
        """Say that an owner is alive."""
        store.beat(owner(id), lease)
