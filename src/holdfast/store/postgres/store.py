"""The Store contract on a PostgreSQL database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Literal

from psycopg import AsyncConnection

from holdfast.core.record import is_empty
from holdfast.errors import StoreError, UsageError
from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Reply
from holdfast.store.base import Store
from holdfast.store.postgres import claiming, rows, schema, selecting
from holdfast.store.postgres.address import read_address
from holdfast.store.postgres.arrays import texts
from holdfast.store.postgres.beating import Heart
from holdfast.store.postgres.connections import Connections
from holdfast.store.postgres.inspecting import INSPECT
from holdfast.store.postgres.telling import Channels
from holdfast.store.postgres.trouble import translated
from holdfast.store.postgres.writing import write_batch

Durability = Literal["power", "process"]
_EVERYTHING = 2**62
_PAGE = 500

_HEADS = f"select {rows.HEAD_COLUMNS} from runs r where r.id = any ($1::text[])"
_READ_ENTRIES = f"""
    select {rows.ENTRY_COLUMNS} from entries e
    where e.n = (select r.n from runs r where r.id = $1) and e.seq > $2 and e.seq <= $3 order by e.seq limit $4
"""
# The run is locked first, so that the ids of its mail rise in the order in which it becomes visible, and no mail is
# put down for a run that is just being deleted. It is counted, so that a commit that has waited for this lock knows.
_POST_MAIL = """
    with run as materialized (select r.n, r.id from runs r where r.id = $1 for no key update), posted as (
      insert into inbox (n, run, kind, body, key, at)
      select run.n, run.id, $2, $3, $4, extract(epoch from clock_timestamp()) from run
      on conflict (n, key) where key is not null do nothing returning 1
    ), counted as (
      update runs r set mailed = r.mailed + 1 from run, posted where r.id = run.id
    )
    select (select count(*) from run), (select count(*) from posted)
"""
# The lock is a statement of its own: what somebody wrote while it was waited for is seen, and deleted, by the next one.
_LOCK_RUN = "select 1 from runs r where r.id = $1 for update"
_DELETE_RUN = f"""
    with gone as materialized (select r.id, r.n from runs r where r.id = $1 and not {rows.OWNED}),
    log as (delete from entries e using gone g where e.n = g.n),
    mail as (delete from inbox i using gone g where i.n = g.n)
    delete from runs r using gone g where r.id = g.id returning 1
"""
_OWNERS = """
    select o.id, o.name, o.lease_until > now(), extract(epoch from o.beat_at)::float8, o.info
    from owners o order by o.id
"""


class PostgresStore(Store):
    """Runs in one schema of a PostgreSQL database that many processes on many machines may use at once.

    `durability="power"`: what is committed is on the server's disk. `durability="process"`
    (synchronous_commit=off): a crash of the server may take back what was committed in the last moments; the rest
    stays sound. The server's clock decides about leases.
    """

    capabilities = frozenset({"durable", "shared"})

    def __init__(
        self, url: str, *, schema: str | None = None, durability: Durability = "power", create: bool = True
    ) -> None:
        """`schema` is where the tables are (`holdfast` unless the URL says ?holdfast_schema=NAME).

        With create=False, opening refuses a database that has no such tables.
        """
        if durability not in ("power", "process"):
            raise UsageError(f"durability is 'power' or 'process', not {durability!r}")
        self._address = read_address(url, schema)
        self._relaxed, self._create = durability == "process", create
        self._heart = Heart(self._address)
        self._opened: tuple[Connections, Channels] | None = None
        self._opening: asyncio.Lock | None = None

    # Opening and closing

    async def open(self) -> None:
        if self._opened is None or self._opened[0].pid != os.getpid():
            await self._open()

    async def _open(self) -> tuple[Connections, Channels]:
        connections = Connections(self._address, relaxed=self._relaxed)
        connection = await connections.connect()
        try:
            with translated(self._address):
                await schema.migrate(connection, self._address, create=self._create)
            if self._opened is not None:
                await self._opened[0].close()  # inherited by a fork: put aside, never closed
            await self._make_ready(connections, connection)
        except BaseException:
            await connection.close()
            await connections.close()
            raise
        self._opened = connections, Channels(self._address.schema, connections.connect, connections.do)
        return self._opened

    async def _make_ready(self, connections: Connections, first: AsyncConnection) -> None:
        """Connect before there is something to do, unless this is only to look at what is there."""
        await connections.open()
        if not self._create:
            await first.close()
            return
        beating = asyncio.get_running_loop().run_in_executor(None, self._heart.be_ready)
        await connections.be_ready(first, lambda connection: _rows(connection, _HEADS, (texts(()),)))
        await beating

    async def _db(self) -> tuple[Connections, Channels]:
        opened = self._opened
        if opened is None:
            # Not opened again by whoever comes late: nobody would close it any more.
            raise StoreError(f"the store at {self._address.shown} is not open")
        return opened if opened[0].pid == os.getpid() else await self._open()

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            connections, channels = opened
            if connections.pid == os.getpid():
                await channels.close()
            await connections.close()
        self._heart.close()

    # Writing

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        connections, channels = await self._db()
        replies = await connections.write(lambda connection: write_batch(connection, batch))
        written = [c for c, reply in zip(batch, replies, strict=True) if reply.refused is None and not is_empty(c)]
        if written:
            channels.tell(ready=any(map(_gives_up, written)))
        return replies

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        connections, channels = await self._db()
        claims = await connections.do(
            lambda connection: claiming.claim_runs(connection, query, owner, self._address.schema)
        )
        if claims:
            channels.tell()
        return claims

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        connections, channels = await self._db()
        values = (run, mail.kind, mail.body.decode(), mail.key)
        ((found, posted),) = await connections.do(lambda connection: _rows(connection, _POST_MAIL, values))
        if not found:
            return Posted.NO_RUN
        if not posted:
            return Posted.DUPLICATE
        channels.tell(ready=True)
        return Posted.ACCEPTED

    async def delete_run(self, run: str) -> bool:
        connections, channels = await self._db()

        async def work(connection: AsyncConnection) -> bool:
            async with connection.pipeline():
                await connection.execute(_LOCK_RUN, (run,))
                gone = await connection.execute(_DELETE_RUN, (run,))
            return await gone.fetchone() is not None

        deleted = await connections.do(work)
        if deleted:
            channels.tell()
        return deleted

    # Owners

    def beat(self, owner: Owner, lease: float) -> None:
        if self._opened is None:
            raise StoreError(f"the store at {self._address.shown} is not open")
        self._heart.beat(owner, lease)

    async def retire_owner(self, owner: str) -> None:
        connections, channels = await self._db()
        await connections.do(
            lambda connection: _rows(connection, "delete from owners where id = $1 returning 1", (owner,))
        )
        channels.tell(ready=True)

    async def list_owners(self) -> list[Owner]:
        connections, _ = await self._db()
        found = await connections.read(lambda connection: _rows(connection, _OWNERS, ()))
        return [Owner(owner, name, alive, beat_at, info.encode()) for owner, name, alive, beat_at, info in found]

    # Reading

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        connections, _ = await self._db()
        found = await connections.read(lambda connection: _rows(connection, _HEADS, (texts(tuple(ids)),)))
        heads = {head.id: head for head in map(rows.head_from, found)}
        return [heads.get(run) for run in ids]

    async def list_heads(self, query: Query) -> list[Head]:
        connections, _ = await self._db()
        return await connections.read(lambda connection: _list(connection, query))

    async def read_entries(
        self, run: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        connections, _ = await self._db()
        last = _EVERYTHING if upto is None else upto
        values = (run, after, last, _EVERYTHING if limit is None else limit)
        found = await connections.read(lambda connection: _rows(connection, _READ_ENTRIES, values))
        return [rows.entry_from(row) for row in found]

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        _, channels = await self._db()
        return await channels.wait(seen, timeout, ready=ready)

    async def inspect(self) -> list[tuple[str | None, str]]:
        connections, _ = await self._db()
        return await connections.read(lambda connection: _rows(connection, INSPECT, ()))


async def _rows(connection: AsyncConnection, text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return await (await connection.execute(text, values, binary=True)).fetchall()


async def _list(connection: AsyncConnection, query: Query) -> list[Head]:
    """Page by page where metadata is asked for: a run's place in the list never changes, so none comes twice."""
    found: list[Head] = []
    page, size = query, min(query.limit, _PAGE) if query.metadata else query.limit
    while len(found) < query.limit:
        text, values = selecting.select_heads(page, size)
        some = await (await connection.execute(text, values, prepare=False, binary=True)).fetchall()
        heads = [rows.head_from(row) for row in some]
        found += [head for head in heads if not query.metadata or selecting.has_metadata(head, query)]
        if len(heads) < size:
            break
        page = _after(query, heads[-1])
    return found[: query.limit]


def _after(query: Query, last: Head) -> Query:
    from msgspec.structs import replace

    return replace(query, after=(last.created_at, last.id))


def _gives_up(commit: Commit) -> bool:
    """Whether nobody owns the run after this commit."""
    return commit.change is not None and commit.change.owner is None
