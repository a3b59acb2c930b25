"""What a Redis server promises is what its settings promise, and where no store can be it is said plainly."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Iterator

import pytest
import redis

from holdfast.errors import HoldfastError, StoreError, StoreUnavailableError, UsageError
from holdfast.model import Query
from holdfast.store.locate import locate
from holdfast.store.redis import RedisStore, store
from holdfast.testing.build import commit, create, entry
from servers.postgres import PostgresServer, free_port
from servers.redis import RedisServer, new_prefix

SECRET = "open-sesame-4711"
DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory": "0", "maxmemory-policy": "noeviction"}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server whose settings a test may change."""
    server = RedisServer()
    yield server
    server.remove()


@pytest.fixture
def client(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A client of the server, which is durable again afterwards."""
    monkeypatch.setattr(store, "_warned", set())
    with server.client() as client:
        yield client
        for name, value in DURABLE.items():
            client.config_set(name, value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"appendonly": "no"}, "since its last snapshot is lost"),
        ({"appendfsync": "everysec"}, "up to a second"),
        ({"appendfsync": "no"}, "leaves flushing to the system"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "any part of any run may vanish"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "may go before its time"),
    ],
)
async def test_a_server_that_promises_less_is_not_durable_and_says_so_once(
    server: RedisServer,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, str],
    said: str,
) -> None:
    for name, value in settings.items():
        client.config_set(name, value)
    url = server.url(new_prefix())
    for _ in range(2):
        one = RedisStore(url)
        await one.open()
        assert one.capabilities == {"shared"}
        assert await one.inspect() == []  # a weaker promise is no damage
        await one.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert said in caplog.text


@pytest.mark.parametrize("settings", [{"maxmemory-policy": "allkeys-lru"}, {"maxmemory": "100mb"}])
async def test_a_server_that_never_evicts_is_durable(
    server: RedisServer, client: redis.Redis, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        client.config_set(name, value)
    one = RedisStore(server.url(new_prefix()))
    await one.open()
    assert one.capabilities == {"shared", "durable"}
    assert await one.inspect() == []
    await one.close()


async def test_where_the_settings_cannot_be_read_that_is_what_is_said(
    server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.acl_setuser("plain", enabled=True, passwords=[f"+{SECRET}"], categories=["+@all"], commands=["-config"],
                       keys=["*"], channels=["*"])  # fmt: skip
    one = RedisStore(f"unix://plain:{SECRET}@{server.socket}", prefix=new_prefix())
    await one.open()
    assert one.capabilities == {"shared"}
    assert "cannot be read" in caplog.text
    await one.commit([create("run")])
    await one.close()


@pytest.mark.parametrize("forbidden", ["publish", "zadd", "hsetnx", "srem", "pexpireat", "eval"])
async def test_a_user_who_may_not_do_all_is_told_before_anything_is_written(
    server: RedisServer, client: redis.Redis, forbidden: str
) -> None:
    commands = [f"-{forbidden}"] + (["-evalsha"] if forbidden == "eval" else [])
    client.acl_setuser("little", enabled=True, reset=True, passwords=[f"+{SECRET}"], categories=["+@all"],
                       commands=commands, keys=["*"], channels=["*"])  # fmt: skip
    prefix = new_prefix()
    with pytest.raises(StoreUnavailableError):
        await RedisStore(f"unix://little:{SECRET}@{server.socket}", prefix=prefix).open()
    assert client.exists(f"{prefix}:meta") == 0


async def test_a_server_without_memory_refuses_a_batch_whole(server: RedisServer, client: redis.Redis) -> None:
    one = RedisStore(server.url(new_prefix()))
    await one.open()
    await one.commit([create("a"), create("b")])
    client.config_set("maxmemory", "1")
    large = [commit(run, entries=(entry(2, body=b'"%s"' % (b"x" * 100_000)),)) for run in ("a", "b")]
    with pytest.raises(StoreUnavailableError, match="nothing was written"):
        await one.commit(large)
    assert [[e.seq for e in await one.read_entries(run)] for run in ("a", "b")] == [[1], [1]]
    client.config_set("maxmemory", "0")
    assert [reply.refused for reply in await one.commit(large)] == [None, None]
    assert await one.inspect() == []
    await one.close()


async def test_a_replica_is_refused() -> None:
    replica = RedisServer("--replicaof", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="Name the primary"):
            await RedisStore(replica.url()).open()
    finally:
        replica.remove()


async def test_a_server_that_becomes_a_replica_writes_nothing_more(server: RedisServer, client: redis.Redis) -> None:
    one = RedisStore(server.url(new_prefix()))
    await one.open()
    await one.commit([create("run")])
    client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="nothing was written"):
            await one.commit([commit("run", 2)])
    finally:
        client.replicaof("NO", "ONE")
    assert [e.seq for e in await one.read_entries("run")] == [1]
    await one.close()


async def test_a_cluster_is_refused() -> None:
    node = RedisServer("--cluster-enabled", "yes")
    try:
        with pytest.raises(StoreUnavailableError, match="name a single server"):
            await RedisStore(node.url()).open()
    finally:
        node.remove()


@pytest.mark.parametrize("user", ["", "nobody"])
async def test_a_wrong_password_is_never_shown(
    server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture, user: str
) -> None:
    client.config_set("requirepass", "another")
    try:
        one = RedisStore(f"unix://{user}:{SECRET}@{server.socket}", prefix="mine")
        with pytest.raises(StoreUnavailableError, match="does not accept") as raised:
            await one.open()
    finally:
        client.auth("another")
        client.config_set("requirepass", "")
    assert SECRET not in _all_that_is_said(raised.value) + caplog.text + repr(one)


async def test_without_a_password_a_server_that_wants_one_says_so(server: RedisServer, client: redis.Redis) -> None:
    client.config_set("requirepass", "another")
    try:
        with pytest.raises(StoreUnavailableError, match="does not accept"):
            await RedisStore(server.url()).open()
    finally:
        client.auth("another")
        client.config_set("requirepass", "")


async def test_a_password_is_not_shown_when_the_server_is_not_there(tmp_path: object) -> None:
    for url in (
        f"redis://u:{SECRET}@127.0.0.1:1/0",
        f"unix://u:{SECRET}@{tmp_path}/none",
        f"rediss://:{SECRET}@[::1]:1",
    ):
        with pytest.raises(StoreUnavailableError, match=r"cannot be reached: .*Start the server, or check") as raised:
            await RedisStore(url).open()
        assert "may have happened" not in str(raised.value)  # nothing was under way
        assert SECRET not in _all_that_is_said(raised.value)


@pytest.mark.parametrize("number", [99, 10**20])
async def test_a_database_that_the_server_does_not_have_is_no_damage(server: RedisServer, number: int) -> None:
    with pytest.raises(StoreUnavailableError, match=r"has no database of this number. Name another one") as raised:
        await RedisStore(f"unix://{server.socket}?db={number}").open()
    assert f"db {number}" in str(raised.value)
    assert "doctor" not in str(raised.value)


async def test_what_is_no_redis_server_is_told_with_what_to_check(postgres: PostgresServer) -> None:
    with pytest.raises(StoreUnavailableError, match="that Redis listens there, without TLS") as raised:
        await RedisStore(f"redis://:{SECRET}@127.0.0.1:{postgres.port}").open()
    assert SECRET not in _all_that_is_said(raised.value)


async def test_a_server_without_tls_is_refused_at_once_though_it_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.store.redis.server.CONNECT_WITHIN", 600.0)
    port = free_port()
    plain = RedisServer("--port", str(port))
    try:
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailableError, match=r"does not speak TLS there. Write redis://") as raised:
                await RedisStore(f"rediss://:{SECRET}@127.0.0.1:{port}").open()
        assert SECRET not in _all_that_is_said(raised.value)
    finally:
        plain.remove()


async def test_a_file_for_tls_that_is_not_there_is_hinted_at(tmp_path: object) -> None:
    with pytest.raises(StoreUnavailableError, match=r"No such file or directory.* the files of the ssl_ options"):
        await RedisStore(f"rediss://127.0.0.1:{free_port()}?ssl_ca_certs={tmp_path}/none").open()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://host:{SECRET}",
        f"redis://u:{SECRET}@host:port/0",
        f"redis://u:{SECRET}/x@host/0",
        f"redis://u{SECRET}/x@host/0",
        f"redis://u:{SECRET}@host/zero",
        f"redis://u:{SECRET}@[host/0",
        f"redis://u:{SECRET}@host/0?{SECRET}",
        f"redis://host/0?password={SECRET}",
        f"redis://u:{SECRET}@host/0?retry_on_timeout=yes",
        "redis://host/0?decode_responses=yes",
        "redis://host/0?db=-1",
        "unix://",
    ],
)
def test_a_url_that_is_not_clear_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        RedisStore(url)
    assert SECRET not in _all_that_is_said(raised.value)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis://host/0?nonsense=1", "'nonsense' is no option of a Redis store. There are: prefix, client_name"),
        (f"redis://host/0?password={SECRET}&{SECRET}=x", "redis://USER:PASSWORD@HOST:PORT"),
        ("redis://host/0?ssl_cert_reqs=none", "ssl_cert_reqs is an option of TLS, .* Write rediss://HOST:PORT"),
        ("unix:///path?ssl_ca_certs=/x", "ssl_ca_certs is an option of TLS"),
        (f"rediss://host/0?ssl_cert_reqs={SECRET}", "none of none, optional, required. Leave it out"),
    ],
)
def test_an_option_that_is_none_is_told_with_what_there_is(url: str, advice: str) -> None:
    with pytest.raises(UsageError, match=advice) as raised:
        RedisStore(url)
    assert SECRET not in _all_that_is_said(raised.value)


@pytest.mark.parametrize(
    "prefix", ["{tag}x", "a\r\nDEL x", "", "a:b", "*", "a b", "é", "-rf", ".", "x" * 65, "a\0b", "[a]", "a\n"]
)
def test_an_odd_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="prefix"):
        RedisStore("redis://localhost", prefix=prefix)


async def test_a_store_is_found_by_its_url(server: RedisServer) -> None:
    prefix = new_prefix()
    one = locate(server.url(prefix))
    await one.open()
    await one.commit([create("run")])
    await one.close()
    again = locate(f"unix://{server.socket}?db=0&prefix={prefix}", create=False)
    await again.open()
    assert [head.id for head in await again.list_heads(Query())] == ["run"]
    await again.close()
    with pytest.raises(StoreError, match="does not exist"):
        await locate(server.url(new_prefix()), create=False).open()
    other = locate(f"unix://{server.socket}?db=1&prefix={prefix}")
    await other.open()
    assert await other.list_heads(Query()) == []
    await other.close()


def test_without_the_driver_it_is_said_how_to_get_it() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "from holdfast.store.locate import locate\n"
        "try: locate('redis://localhost')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    said = _output(program)
    assert said.startswith("UsageError")
    assert "pip install 'holdfast[redis]'" in said


def test_the_driver_is_not_loaded_by_whoever_does_not_use_it() -> None:
    assert _output("import sys, holdfast; print('redis' in sys.modules)").strip() == "False"


def _output(program: str) -> str:
    import subprocess
    import sys

    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def _all_that_is_said(error: BaseException | None) -> str:
    """Everything that an error and what caused it show."""
    said = ""
    assert isinstance(error, HoldfastError)
    said += "".join(traceback.format_exception(error))
    while error is not None:
        said += f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__
    return said
