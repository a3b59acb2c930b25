"""A PostgreSQL store that reaches its server through a proxy, which may cut it off; the same store from elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.store.postgres import PostgresStore
from servers.pgproxy import PgProxy, pgproxy_to
from servers.postgres import PostgresServer


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[PgProxy]:
    async with pgproxy_to(postgres.port) as one:
        yield one


@pytest.fixture
async def proxied(
    proxy: PgProxy, postgres: PostgresServer, postgres_store: str, postgres_url: str
) -> AsyncIterator[PostgresStore]:
    """A store that reaches its server through the proxy."""
    store = PostgresStore(postgres.url(postgres_store, port=proxy.port))
    await store.open()
    yield store
    proxy.open.set()
    await store.close()


@pytest.fixture
async def direct(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """The same store, as somebody else sees it."""
    direct = PostgresStore(postgres_url)
    await direct.open()
    yield direct
    await direct.close()
