"""For tests of PostgreSQL stores: commits that are accepted, and what is under way."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.store.postgres import PostgresStore
from servers.postgres import PostgresServer


async def accepted(store: PostgresStore, *batch: Any) -> None:
    """Commit all of this, and have none of it refused."""
    assert [reply.refused for reply in await store.commit(batch)] == [None] * len(batch)


async def settled(store: PostgresStore) -> None:
    """Return when nothing is under way and everything that others are told has been told."""
    assert store._opened is not None
    connections, channels = store._opened
    while channels._sending is not None or connections._under_way:
        await asyncio.wait({*connections._under_way, *([channels._sending] if channels._sending else [])})


async def listening(server: PostgresServer, store: PostgresStore, *, but: int = 0) -> int:
    """The process of the server, another one than `but`, to which the store listens, once there is one."""
    assert store._opened is not None
    query = "select pid from pg_stat_activity where query = %s and pid <> %s"
    last = f'listen "{store._opened[1]._names[True]}"'
    with server.connect() as admin:
        while not (found := admin.execute(query, (last, but)).fetchall()):
            await store.wait_change(await store.wait_change(0, 0.0), 0.01)  # it listens once somebody waits
    return int(found[0][0])
