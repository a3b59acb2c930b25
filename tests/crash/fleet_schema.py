"""The schema is wholly there or not at all, whoever opens the store at once; opening it again changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from holdfast import Runtime
from servers.postgres import PostgresServer

Facts = list[tuple[Any, ...]]

# One statement, so that all of it is seen at one moment. What the torture itself has put there is left out.
_FACTS = """
    select c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
        a.attidentity::text, a.attcollation::regcollation::text, array_to_string(c.reloptions, ',')
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
    where c.relnamespace = to_regnamespace('{s}') and c.relname not like 'torture%' and c.relkind <> 'i'
    union all
    select c.relname, 'index', replace(pg_get_indexdef(c.oid), '{s}.', ''), null, null, null, null, null
    from pg_class c where c.relnamespace = to_regnamespace('{s}') and c.relkind = 'i'
    order by 1, 2, 3
"""
_TABLES = ("holdfast", "runs", "entries", "inbox", "owners")


def facts(connection: psycopg.Connection[Any], schema: str) -> Facts:
    """Every table, column, sequence and index, and the version; nothing when there is no schema."""
    found = connection.execute(_FACTS.format(s=schema)).fetchall()
    if found:
        found += connection.execute(f"select 'version', version from {schema}.holdfast").fetchall()
    return found


def undisturbed(server: PostgresServer) -> Facts:
    """What a schema is like that one process has made in peace."""
    with server.schema() as schema, server.connect() as connection:
        open_once(server.url(schema))
        return facts(connection, schema)


def open_once(url: str) -> None:
    """Open a store as a program does, and let it go."""

    async def main() -> None:
        async with Runtime(url):
            pass

    asyncio.run(main())


@contextmanager
def looked_at(server: PostgresServer, schema: str, whole: Facts) -> Iterator[None]:
    """Meanwhile, whoever looks sees nothing of the schema or all of it. Raises AssertionError at the end."""
    over, halves = threading.Event(), list[Facts]()

    def look() -> None:
        while not over.wait(0.002):
            with suppress(psycopg.OperationalError), server.connect() as connection:  # it is away now and then
                while not over.wait(0.002):
                    found = facts(connection, schema)
                    halves.extend([found] if found not in ([], whole) else [])

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield
    finally:
        over.set()
        looker.join()
    assert not halves, f"half of a schema was seen: {set(whole) ^ set(halves[0])}"


def check_schema(server: PostgresServer, schema: str, whole: Facts) -> None:
    """It is as in peace, and opening the store once more leaves it and every row of it as it is."""
    with server.connect() as connection:
        before = facts(connection, schema), _contents(connection, schema)
        assert before[0] == whole, f"the schema is not as one made in peace: {set(before[0]) ^ set(whole)}"
        open_once(server.url(schema))
        assert (facts(connection, schema), _contents(connection, schema)) == before, "opening again changed the store"


def _contents(connection: psycopg.Connection[Any], schema: str) -> Facts:
    """How many rows each table has, and what all of them are."""
    text = "select count(*), md5(string_agg(t::text, '\n' order by t::text)) from {}.{} t"
    return [row for table in _TABLES for row in connection.execute(text.format(schema, table)).fetchall()]
