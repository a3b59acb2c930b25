"""The Redis store passes the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.store.base import Store
from holdfast.store.redis import RedisStore
from holdfast.testing import ManualClock, StoreContract
from servers.redis import clear, new_prefix, pass_time, shared_server


class TestRedisStore(StoreContract):
    capabilities = frozenset({"durable", "shared"})

    @pytest.fixture(autouse=True)
    def prefix(self) -> Iterator[str]:
        self._prefix = new_prefix()
        yield self._prefix
        clear(shared_server(), self._prefix)

    @pytest.fixture
    def make_store(self, prefix: str) -> Callable[[], Store]:
        return lambda: RedisStore(shared_server().url(), prefix=prefix)

    async def pass_time(self, clock: ManualClock, seconds: float) -> None:
        pass_time(shared_server(), self._prefix, seconds)
