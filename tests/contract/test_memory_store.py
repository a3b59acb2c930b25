"""The store in memory passes the contract, and forgets ended runs where that is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.model import HeadChange, Posted
from holdfast.model import Mail as Post
from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.testing import ManualClock, StoreContract
from holdfast.testing.build import commit, create


class TestMemoryStore(StoreContract):
    capabilities = frozenset({"inline"})

    @pytest.fixture
    def make_store(self, clock: ManualClock) -> Callable[[], Store]:
        return lambda: MemoryStore(clock)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
async def test_without_keep_a_run_is_forgotten_as_soon_as_it_ends(status: str) -> None:
    store = MemoryStore(keep=False)
    await store.commit([create("ends"), create("goes-on"), commit("goes-on", 2, change=HeadChange(status="paused"))])
    (reply,) = await store.commit([commit("ends", 2, change=HeadChange(status=status, owner=None))])
    assert reply.refused is None
    ended, going_on = await store.read_heads(["ends", "goes-on"])
    assert ended is None
    assert going_on is not None
    assert await store.post_mail("ends", Post("send")) is Posted.NO_RUN
