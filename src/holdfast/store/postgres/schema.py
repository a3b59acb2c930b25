"""The tables, and how a database gets them.

    runs      one small mutable row per run; `n` is never used again, so a late writer cannot hit another run, and
              unique, also where its sequence was left behind by a restore of the data alone. A step changes seq,
              cursor and updated_at alone, no index has them and the pages keep room, so that its new row goes
              beside the old one and no index is touched
    entries   the log, found by run and seq
    inbox     mail; keyed mail stays as taken so that its key is never accepted again; `run` saves a look at runs
    owners    who said when to be alive for how long, by the server's clock
    holdfast  the version of all this

JSON is kept as text: it comes back byte for byte, and may hold what jsonb refuses. What is compared or sorted is
collated by its bytes.

Each migration is one transaction together with its new version number, under a lock that only one process gets:
dying inside one leaves the old version, and the next open does it again.
"""

from __future__ import annotations

from hashlib import blake2b

import psycopg
from psycopg import AsyncConnection

from holdfast.errors import StoreDamagedError, StoreUnavailableError, StoreVersionError, UsageError
from holdfast.faults import fault
from holdfast.store.postgres.address import Address

NUMBERS = "runs_by_number"
UNFINISHED = "('pending', 'running', 'waiting', 'paused', 'interrupted')"

MIGRATIONS: list[str] = [
    f"""
    create table holdfast (version integer not null);
    insert into holdfast values (0);
    create table runs (
        id text collate "C" primary key,
        n bigint generated always as identity,
        flow text collate "C" not null,
        status text collate "C" not null,
        owner text collate "C",
        fence bigint not null,
        attempt bigint not null,
        base bigint not null,
        floor bigint not null,
        wake_at float8,
        expires_at float8,
        parent text collate "C",
        queue text collate "C" not null,
        priority smallint not null,
        key text collate "C",
        metadata text collate "C" not null,
        info text not null,
        error text,
        waiting_for text,
        created_at float8 not null,
        started_at float8,
        ended_at float8,
        seq bigint not null,
        cursor text not null,
        updated_at float8 not null
    ) with (fillfactor = 60);
    create index runs_by_age on runs (created_at, id);
    create index runs_unfinished on runs (created_at, id) where status in {UNFINISHED};
    create index runs_ready on runs (queue, status, priority desc, created_at, id)
        where owner is null and wake_at is null and status in {UNFINISHED};
    create index runs_due on runs (wake_at) where wake_at is not null and status in {UNFINISHED};
    create index runs_owned on runs (owner) where owner is not null;
    create index runs_expiring on runs (expires_at) where expires_at is not null;
    create index runs_by_parent on runs (parent) where parent is not null;
    create table entries (
        n bigint not null,
        seq bigint not null,
        fence bigint not null,
        at float8 not null,
        kind text not null,
        "check" text not null,
        cursor text not null,
        body text not null,
        primary key (n, seq)
    );
    create table inbox (
        id bigint generated always as identity primary key,
        n bigint not null,
        run text collate "C" not null,
        kind text not null,
        body text not null,
        key text collate "C",
        at float8 not null,
        taken boolean not null default false
    );
    create unique index inbox_by_key on inbox (n, key) where key is not null;
    create index inbox_waiting on inbox (n, id) where not taken;
    create table owners (
        id text collate "C" primary key,
        name text not null,
        info text not null,
        beat_at timestamptz not null,
        lease_until timestamptz not null
    ) with (fillfactor = 50);
    """,
    f"create unique index {NUMBERS} on runs (n)",
    "alter table runs add column mailed bigint not null default 0",  # how often mail has come
]

_ABOUT = """
    select current_setting('server_encoding'), pg_is_in_recovery(), current_setting('transaction_read_only')::bool,
        to_regnamespace($1::text) is not null, to_regclass($1::text || '.holdfast') is not null,
        exists (select 1 from pg_class where relnamespace = to_regnamespace($1::text))
"""


def lock_number(*names: str) -> int:
    """The number of the advisory lock for these names: another one, as good as certainly, for any others."""
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=8).digest(), "big", signed=True)


async def version(connection: AsyncConnection, address: Address) -> int:
    """The schema's version; 0 when nothing is there. Raises for a newer one, and for what is not ours."""
    schema = address.quoted_schema
    cursor = await connection.execute(_ABOUT, (schema,))
    row = await cursor.fetchone()
    assert row is not None
    encoding, replica, reads_only, _, ours, filled = row
    if encoding != "UTF8":
        raise StoreUnavailableError(
            f"{address.shown}: the database has the encoding {encoding}, and runs need UTF8. Create another database "
            f"(createdb --encoding=UTF8 --template=template0), or name one"
        )
    if replica:
        raise StoreUnavailableError(
            f"{address.shown} is a read-only replica of another server, and a store is written to. Name the primary "
            f"server in the URL, or promote this one"
        )
    if reads_only:
        raise StoreUnavailableError(
            f"{address.shown} takes no writes: default_transaction_read_only is on. Switch it off for this user or "
            f"database, or name another server"
        )
    if not ours:
        if filled:
            raise UsageError(
                f"the schema {schema} belongs to another program, and is left as it is: name another one "
                f"(?holdfast_schema=NAME)"
            )
        return 0
    try:
        found = await (await connection.execute(f"select version from {schema}.holdfast")).fetchall()
    except psycopg.errors.UndefinedColumn:
        found = []
    if len(found) != 1 or not isinstance(found[0][0], int):
        raise UsageError(f"the table {schema}.holdfast is not ours, and is left as it is: name another schema")
    number = int(found[0][0])
    if number > len(MIGRATIONS):
        raise StoreVersionError(number, len(MIGRATIONS))
    return number


async def migrate(connection: AsyncConnection, address: Address, *, create: bool) -> None:
    """Bring the schema to the newest version. Several processes may do this at once."""
    at = await version(connection, address)
    if at == len(MIGRATIONS):
        return
    if not at and not create:
        raise StoreUnavailableError(f"there is no store at {address.shown}. Name another one, or run something in it.")
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", (lock_number("holdfast", address.schema),))
        # Another process may have been quicker while this one waited for the lock. All steps are one transaction:
        # whoever looks sees nothing of them, or all.
        for step in range(await version(connection, address), len(MIGRATIONS)):
            await _step(connection, address, step)
        fault("migration.before")
    fault("migration.after")


async def _step(connection: AsyncConnection, address: Address, at: int) -> None:
    schema = address.quoted_schema
    there = await (await connection.execute("select to_regnamespace($1::text) is not null", (schema,))).fetchone()
    if there is None or not there[0]:  # whoever may not create one may be given one
        await connection.execute(f"create schema {schema}")
    await connection.execute(f"set local search_path = {schema}")
    try:
        await connection.execute(MIGRATIONS[at], prepare=False)
    except psycopg.errors.UniqueViolation as error:
        raise StoreDamagedError(
            None,
            None,
            f"{address.shown}: two runs share one log ({error.diag.message_detail}). Give the newer one a number of "
            f"its own (UPDATE {schema}.runs SET n = DEFAULT WHERE id = ...), then delete it",
        ) from error
    fault("migration.inside")
    await connection.execute(f"update holdfast set version = {at + 1}")
