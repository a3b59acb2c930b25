"""The PostgreSQL store passes the contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.store.base import Store
from holdfast.store.postgres import PostgresStore
from holdfast.testing import ManualClock, StoreContract
from servers.postgres import PostgresServer


class TestPostgresStore(StoreContract):
    capabilities = frozenset({"durable", "shared"})

    @pytest.fixture
    def make_store(self, postgres: PostgresServer, postgres_store: str, postgres_url: str) -> Callable[[], Store]:
        self.server, self.schema = postgres, postgres_store
        return lambda: PostgresStore(postgres_url)

    async def pass_time(self, clock: ManualClock, seconds: float) -> None:
        # The server's clock cannot be moved: what it has written down is moved back instead.
        self.server.turn_back(self.schema, seconds)
