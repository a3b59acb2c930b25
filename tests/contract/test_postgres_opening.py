"""Opening a PostgreSQL store: what it makes, what it refuses, and that a password is never shown."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from holdfast.errors import HoldfastError, StoreUnavailableError, StoreVersionError, UsageError
from holdfast.faults import install
from holdfast.model import HeadChange
from holdfast.store import strangers
from holdfast.store.locate import locate
from holdfast.store.postgres import PostgresStore, schema
from holdfast.store.postgres.address import read_address
from holdfast.testing.build import commit, create
from servers.postgres import KEPT_OUT, PASSWORD, PASSWORD_USER, PostgresServer, free_port
from servers.redis import RedisServer


async def opened(url: str, **options: Any) -> PostgresStore:
    store = PostgresStore(url, **options)
    await store.open()
    return store


async def refused(url: str, **options: Any) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        await opened(url, **options)
    return caught.value


def tables(server: PostgresServer, name: str) -> list[tuple[Any, ...]]:
    """All that is in a schema."""
    text = "select relname::text, relkind::text from pg_class where relnamespace = %s::text::regnamespace order by 1"
    with server.connect() as admin:
        return admin.execute(text, (name,)).fetchall()


# What it makes


async def test_many_open_a_new_store_at_once(postgres: PostgresServer, postgres_schema: str) -> None:
    stores = await asyncio.gather(*(opened(postgres.url(postgres_schema)) for _ in range(8)))
    for n, store in enumerate(stores):
        assert (await store.commit([create(f"run-{n}")]))[0].refused is None
    for store in stores:
        assert len(await store.read_heads([f"run-{n}" for n in range(8)])) == 8
        await store.close()
    with postgres.connect() as admin:
        assert admin.execute(f"select version from {postgres_schema}.holdfast").fetchall() == [
            (len(schema.MIGRATIONS),)
        ]


@pytest.mark.parametrize("point", ["migration.inside", "migration.before"])
async def test_dying_inside_a_migration_leaves_the_old_version(
    postgres: PostgresServer, postgres_schema: str, point: str
) -> None:
    class Died(BaseException):
        pass

    def die(here: str) -> None:
        if here == point:
            raise Died

    install(die)
    try:
        with pytest.raises(Died):
            await opened(postgres.url(postgres_schema))
    finally:
        install(None)
    with postgres.connect() as admin:
        assert admin.execute("select to_regnamespace(%s::text)", (postgres_schema,)).fetchone() == (None,)
    store = await opened(postgres.url(postgres_schema))
    assert (await store.commit([create("run")]))[0].refused is None
    await store.close()


async def test_a_schema_that_somebody_else_has_made_is_filled(postgres: PostgresServer, postgres_schema: str) -> None:
    with postgres.connect() as admin:
        admin.execute(f"create schema {postgres_schema}")
    store = await opened(postgres.url(), schema=postgres_schema)
    assert (await store.commit([create("run")]))[0].refused is None
    await store.close()


async def test_two_schemas_are_two_stores(postgres: PostgresServer, postgres_schema: str, postgres_url: str) -> None:
    one, other = await opened(postgres_url), await opened(postgres.url(postgres_schema))
    await one.commit([create("run")])
    assert await other.read_heads(["run"]) == [None]
    await one.close()
    await other.close()


async def test_what_is_acknowledged_is_on_disk_whatever_the_server_is_set_to(
    postgres: PostgresServer, postgres_store: str, postgres_url: str
) -> None:
    async def setting(store: PostgresStore) -> str:
        assert store._opened is not None

        async def ask(connection: Any) -> Any:
            return (await (await connection.execute("show synchronous_commit")).fetchone())[0]

        return f"{await store._opened[0].write(ask)} {await store._opened[0].do(ask)}"

    relaxed = "&options=-csynchronous_commit%3Doff"
    for url, durability, expected in (
        (postgres_url, "power", "on on"),
        (postgres_url + relaxed, "power", "on on"),
        (postgres_url, "process", "off off"),
    ):
        store = await opened(url, durability=durability)
        assert await setting(store) == expected
        await store.close()


async def test_a_step_touches_no_index(postgres: PostgresServer) -> None:
    # In a database of its own: an old snapshot of somebody else would keep the rows before from being cleared away.
    with postgres.database() as url:
        store = await opened(url)
        await store.commit([create("run", metadata=b'{"k":"' + b"x" * 200 + b'"}')])
        for seq in range(2, 52):
            await store.commit([commit("run", seq)])
        await store.close()
        with psycopg.connect(url, autocommit=True) as admin:
            # The server counts a little later.
            while (counted := _updates(admin, "holdfast"))[0] < 50:
                await asyncio.sleep(0.01)
    assert counted == (50, 50)  # the steps; a run is made with its first entry


def _updates(admin: psycopg.Connection[Any], name: str) -> tuple[int, int]:
    """How many rows of runs were changed, and how many of those without any index."""
    counts = admin.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = %s and relname = 'runs'", (name,)
    ).fetchone()
    assert counts is not None
    return int(counts[0]), int(counts[1])


# What it refuses


async def test_a_database_without_our_tables_is_not_made_where_it_is_only_looked_at(
    postgres: PostgresServer, postgres_schema: str
) -> None:
    error = await refused(postgres.url(postgres_schema), create=False)
    assert isinstance(error, StoreUnavailableError)
    assert "there is no store at" in str(error)
    with postgres.connect() as admin:
        assert admin.execute("select to_regnamespace(%s::text)", (postgres_schema,)).fetchone() == (None,)


async def test_a_newer_store_is_refused_and_left_as_it_is(postgres: PostgresServer, postgres_schema: str) -> None:
    await (await opened(postgres.url(postgres_schema))).close()
    with postgres.connect() as admin:
        admin.execute(f"update {postgres_schema}.holdfast set version = 999")
        admin.execute(f"alter table {postgres_schema}.runs rename to runs_of_the_future")
    before = tables(postgres, postgres_schema)
    error = await refused(postgres.url(postgres_schema))
    assert isinstance(error, StoreVersionError)
    assert error.found == 999
    assert tables(postgres, postgres_schema) == before


@pytest.mark.parametrize("table", ["runs (id int)", "something (x text)", "holdfast (other text)"])
async def test_a_schema_of_another_program_is_refused_and_left_as_it_is(
    postgres: PostgresServer, postgres_schema: str, table: str
) -> None:
    with postgres.connect() as admin:
        admin.execute(f"create schema {postgres_schema}")
        admin.execute(f"create table {postgres_schema}.{table}")
    before = tables(postgres, postgres_schema)
    error = await refused(postgres.url(postgres_schema))
    assert isinstance(error, UsageError)
    assert "name another" in str(error)
    assert tables(postgres, postgres_schema) == before


async def test_a_server_that_only_reads_is_refused(postgres: PostgresServer, postgres_schema: str) -> None:
    url = f"{postgres.url(postgres_schema)}&options=-cdefault_transaction_read_only%3Don"
    error = await refused(url)
    assert isinstance(error, StoreUnavailableError)
    assert "takes no writes: default_transaction_read_only is on. Switch it off" in str(error)
    assert "replica" not in str(error)


async def test_a_replica_is_refused_by_that_name() -> None:
    primary = PostgresServer.create(followed=True)
    try:
        await (await opened(primary.url())).close()
        replica = primary.replica()
        try:
            for url in (replica.url(), replica.url("another"), replica.url() + "?target_session_attrs=read-write"):
                error = await refused(url)
                assert isinstance(error, StoreUnavailableError)
                assert "ame the primary server" in str(error)
            assert "is a read-only replica of another server" in str(await refused(replica.url()))
            assert "is a read-only replica of another server" in str(await refused(replica.url(), create=False))
        finally:
            replica.remove()
    finally:
        primary.remove()


async def test_a_database_in_another_encoding_is_refused(postgres: PostgresServer) -> None:
    with postgres.connect() as admin:
        admin.execute("create database in_latin encoding 'LATIN1' locale 'C' template template0")
    try:
        error = await refused(postgres.url().replace("/postgres", "/in_latin"))
        assert "runs need UTF8" in str(error)
    finally:
        with postgres.connect() as admin:
            admin.execute("drop database in_latin")


@pytest.mark.parametrize("there", ["nothing", "schema", "tables"])
async def test_a_user_without_rights_is_told_which_grant_is_missing(
    postgres: PostgresServer, postgres_schema: str, there: str
) -> None:
    user = f"powerless_{postgres_schema}"
    if there == "tables":
        await (await opened(postgres.url(postgres_schema))).close()
    with postgres.connect() as admin:
        if there == "schema":
            admin.execute(f"create schema {postgres_schema}")
        admin.execute(f"create role {user} login")
    try:
        error = await refused(postgres.url(postgres_schema, user=user))
        assert isinstance(error, StoreUnavailableError)
        assert f'GRANT USAGE, CREATE ON SCHEMA "{postgres_schema}" TO "{user}"' in str(error)
        assert f'GRANT CREATE ON DATABASE "postgres" TO "{user}"' in str(error)
        with postgres.connect() as admin:
            for grant in str(error).partition("the schema is there: ")[2].split("; ") if there != "nothing" else ():
                admin.execute(grant)
        if there != "nothing":
            store = await opened(postgres.url(postgres_schema, user=user))
            assert (await store.commit([create("run")]))[0].refused is None
            await store.close()
    finally:
        with postgres.connect() as admin:
            admin.execute(f"drop owned by {user}")
            admin.execute(f"drop role {user}")


async def test_a_user_who_may_not_make_runs_can_go_on_with_them(postgres: PostgresServer, postgres_schema: str) -> None:
    first = await opened(postgres.url(postgres_schema))
    assert (await first.commit([create("run")]))[0].refused is None
    await first.close()
    user = f"worker_{postgres_schema}"
    with postgres.connect() as admin:
        admin.execute(f"create role {user} login; grant usage on schema {postgres_schema} to {user}")
        admin.execute(f"grant select, insert, update, delete on all tables in schema {postgres_schema} to {user}")
        admin.execute(f"revoke insert on {postgres_schema}.runs from {user}")
    try:
        store = await opened(postgres.url(postgres_schema, user=user))
        assert (await store.commit([commit("run", 2)]))[0].refused is None
        with pytest.raises(StoreUnavailableError, match="permission denied for table runs"):
            await store.commit([create("other")])
        assert (await store.commit([commit("run", 3, change=HeadChange(status="completed"))]))[0].refused is None
        await store.close()
    finally:
        with postgres.connect() as admin:
            admin.execute(f"drop owned by {user}; drop role {user}")


async def test_a_database_whose_transactions_are_serializable_is_made_by_many_at_once(postgres: PostgresServer) -> None:
    with postgres.database() as url, postgres.connect() as admin:
        admin.execute(f"alter database {url.rpartition('/')[2]} set default_transaction_isolation = 'serializable'")
        stores = await asyncio.gather(*(opened(url) for _ in range(8)))
        replies = await asyncio.gather(*(store.commit([create(f"run-{n}")]) for n, store in enumerate(stores)))
        for store in stores:
            await store.close()
    assert [reply.refused for (reply,) in replies] == [None] * 8


# What listens there


@pytest.fixture
async def slow(postgres: PostgresServer) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A port where PostgreSQL answers nobody until it has been sent something odd, and all of that."""
    asked, odd, connections = asyncio.Event(), list[bytes](), list[Any]()

    async def let_through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        first = await reader.read(100)
        if first.startswith(b"\0"):
            await asked.wait()
        else:
            odd.append(first)
        theirs, ours = await asyncio.open_connection("127.0.0.1", postgres.port)
        ours.write(first)
        ways = [asyncio.ensure_future(_pass_on(*way)) for way in ((reader, ours), (theirs, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (ours, writer):
            end.close()
        await asyncio.wait(ways)
        asked.set()

    async with await asyncio.start_server(let_through, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], odd
        await asyncio.wait(connections)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)


async def test_a_redis_server_is_refused_at_once_though_it_says_nothing() -> None:
    port = free_port()
    server = RedisServer("--port", str(port))
    try:
        async with asyncio.timeout(30):  # of the ten minutes that the URL allows
            error = await refused(f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/db?connect_timeout=600")
        assert isinstance(error, StoreUnavailableError)
        assert "what listens there is a Redis server. Write redis://HOST:PORT, or name the port of" in str(error)
        assert PASSWORD not in "".join(traceback.format_exception(error))
    finally:
        server.remove()


async def test_a_slow_server_is_waited_for_and_asked_only_once_what_it_is(
    slow: tuple[int, list[bytes]], postgres: PostgresServer, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "_SILENCE", 0.0)  # every server is slow
    port, odd = slow
    store = await opened(postgres.url(postgres_schema, port=port))
    assert (await store.commit([create("run")]))[0].refused is None
    await store.close()
    assert odd == [b"PING\r\n"]


async def test_a_connection_that_comes_when_its_opener_was_cancelled_is_closed(
    postgres: PostgresServer, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[psycopg.AsyncConnection] = []
    connect = psycopg.AsyncConnection.connect

    async def connect_too_late(*given: Any, **options: Any) -> psycopg.AsyncConnection:
        made.append(await connect(*given, **options))
        opening.cancel()
        return made[0]

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect_too_late)
    opening = asyncio.create_task(PostgresStore(postgres.url(postgres_schema)).open())
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [connection.closed for connection in made] == [True]


# Passwords


def _wrong_password(server: PostgresServer) -> str:
    return server.url(user=f"{PASSWORD_USER}:wrong-{PASSWORD}")


def _wrong_database(server: PostgresServer) -> str:
    return server.url(user=f"{PASSWORD_USER}:{PASSWORD}").replace("/postgres", "/not_there")


def _nobody_listens(server: PostgresServer) -> str:
    return server.url(user=f"{PASSWORD_USER}:{PASSWORD}", port=free_port())


def _with(server: PostgresServer, option: str) -> str:
    return f"{server.url(user=f'{PASSWORD_USER}:{PASSWORD}')}?{option}"


BAD: dict[str, tuple[Callable[[PostgresServer], str], str]] = {
    "wrong password": (_wrong_password, "Check the user and the password"),
    "unknown database": (_wrong_database, "createdb not_there"),
    "nobody listens": (_nobody_listens, "Start the server"),
    "slash in the password": (lambda server: f"postgresql://u:{PASSWORD}/x@127.0.0.1/db", "%2F"),
    "at in the password": (lambda server: f"postgresql://u:{PASSWORD}@x@127.0.0.1/db", "%40"),
    "password as port": (lambda server: f"postgresql://u:{PASSWORD}/db", "%XX"),
    "unknown option": (
        lambda server: f"postgresql://u:{PASSWORD}@127.0.0.1/db?nonsense={PASSWORD}",
        "'nonsense' is no option of a PostgreSQL store. There are holdfast_schema and those of libpq",
    ),
    "misspelt option": (lambda server: f"postgresql://u:{PASSWORD}@h/db?ssl_mode=require", "did you mean sslmode?"),
    "and in the password": (lambda server: f"postgresql://h/db?user=u&password=x&{PASSWORD}=y", "& is %26"),
    "wrong sslmode": (
        lambda server: f"postgresql://u:{PASSWORD}@127.0.0.1/db?sslmode={PASSWORD}",
        "sslmode in the URL is none of disable, allow, prefer, require, verify-ca, verify-full. Write sslmode=",
    ),
    "no encryption there": (lambda server: _with(server, "sslmode=require"), "Check sslmode and the other ssl options"),
    "bad number": (lambda server: _with(server, "connect_timeout=soon"), "Correct that option in the URL"),
    "bad value": (lambda server: _with(server, "target_session_attrs=all"), "Correct that option in the URL"),
    "bad setting": (lambda server: _with(server, "options=-cnonsense%3D1"), "Correct `options` in the URL"),
    "not let in": (lambda server: server.url(user=f"{KEPT_OUT}:{PASSWORD}"), "allow this user, database and address"),
    "bad schema": (lambda server: f"postgresql://u:{PASSWORD}@127.0.0.1/db?holdfast_schema=a;b", "name of a schema"),
}


@pytest.mark.parametrize(("url", "advice"), BAD.values(), ids=BAD)
async def test_what_cannot_be_opened_says_what_to_do_and_never_the_password(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture, url: Callable[[PostgresServer], str], advice: str
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await refused(url(postgres))
    assert isinstance(error, (StoreUnavailableError, UsageError))
    assert advice in str(error)
    assert "\n" not in str(error)
    told = "".join(traceback.format_exception(error)) + repr(error) + repr(error.__cause__) + caplog.text
    assert PASSWORD not in told


async def test_the_right_password_opens_the_store_and_no_error_shows_it(
    postgres: PostgresServer, postgres_schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = await opened(postgres.url(postgres_schema, user=f"{PASSWORD_USER}:{PASSWORD}"))
    await store.commit([create("run")])
    with postgres.connect() as admin:
        admin.execute(f"drop table {postgres_schema}.entries")
    with pytest.raises(StoreUnavailableError) as caught:
        await store.commit([commit("run", 2)])
    assert "not there any more" in str(caught.value)
    told = "".join(traceback.format_exception(caught.value)) + repr(store) + repr(caught.value.__cause__) + caplog.text
    assert PASSWORD not in told
    await store.close()


@pytest.mark.parametrize("bad", ["wrong password", "nobody listens", "slash in the password", "wrong sslmode"])
def test_the_command_line_says_it_in_one_line(postgres: PostgresServer, bad: str) -> None:
    command = [sys.executable, "-m", "holdfast", "ls", "--store", BAD[bad][0](postgres)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if bad in ("slash in the password", "wrong sslmode") else 7)
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: ")
    assert BAD[bad][1] in line
    assert PASSWORD not in done.stdout + done.stderr


def test_without_the_driver_it_is_said_how_to_get_it() -> None:
    for missing in ("psycopg", "psycopg_pool"):
        program = (
            f"import sys; sys.modules[{missing!r}] = None\n"
            "from holdfast.store.locate import locate\n"
            "try: locate('postgresql://x/y')\n"
            "except Exception as error: print(type(error).__name__, error)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == (
            "UsageError a store in PostgreSQL needs its driver: pip install 'holdfast[postgres]'"
        )


def test_the_driver_is_not_imported_unless_it_is_needed() -> None:
    program = "import sys; from holdfast.store.locate import locate; locate('memory:'); print('psycopg' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# URLs


@pytest.mark.parametrize(
    ("url", "named", "expected"),
    [
        ("postgresql://h/d", None, "holdfast"),
        ("postgres://h/d?holdfast_schema=other", None, "other"),
        ("postgres://h/d?sslmode=disable&holdfast_schema=other&connect_timeout=3", None, "other"),
        ("postgres://h/d?holdfast_schema=other", "mine", "mine"),
    ],
)
def test_the_schema_is_taken_from_the_url_or_the_argument(url: str, named: str | None, expected: str) -> None:
    address = read_address(url, named)
    assert address.schema == expected
    assert "holdfast_schema" not in address.conninfo


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///d?host=/tmp",
        "postgresql://u:p%40ss@[::1]:5432/d",
        "postgres://a:1,b:2/d?target_session_attrs=any",
    ],
)
def test_urls_of_every_form_are_read(url: str) -> None:
    shown = read_address(url).shown
    assert shown.startswith("postgresql://")
    assert "p@ss" not in shown
    assert isinstance(locate(url), PostgresStore)
