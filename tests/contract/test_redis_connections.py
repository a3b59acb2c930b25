"""A Redis store and its connections: one round trip for a batch, nothing sent twice, nobody else's reply."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.errors import StoreError, StoreUnavailableError
from holdfast.model import Query, Refusal
from holdfast.store.redis import RedisStore, server
from holdfast.testing.build import ALICE, BOB, commit, create, owner
from servers.proxy import Proxy, proxy_to
from servers.redis import RedisServer, clear, new_prefix, shared_server


@pytest.fixture
def prefix() -> Iterator[str]:
    prefix = new_prefix()
    yield prefix
    clear(shared_server(), prefix)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with proxy_to(shared_server().socket) as one:
        yield one


@pytest.fixture
async def store(proxy: Proxy, prefix: str) -> AsyncIterator[RedisStore]:
    """A store that reaches its server through the proxy."""
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}", prefix=prefix)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def direct(prefix: str, store: RedisStore) -> AsyncIterator[RedisStore]:
    """The same store, as somebody else sees it."""
    direct = RedisStore(shared_server().url(prefix))
    await direct.open()
    yield direct
    await direct.close()


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that a test may end."""
    server = RedisServer()
    yield server
    server.remove()


async def test_a_batch_of_any_size_is_one_round_trip(store: RedisStore, proxy: Proxy) -> None:
    await store.commit([create(f"run-{n}") for n in range(30)])  # makes the script known
    proxy.asked.clear()
    batch = [commit(f"run-{n}", 2) for n in range(30)] + [commit("run-0", 9), commit("missing", 1), create("new")]
    replies = await store.commit(batch)
    assert proxy.asked == ["EVALSHA"]
    assert [reply.refused for reply in replies] == [*[None] * 30, Refusal.GAP, Refusal.STALE, None]


async def test_a_server_that_has_forgotten_the_scripts_is_told_them_again(store: RedisStore, proxy: Proxy) -> None:
    await store.commit([create("run")])
    with shared_server().client() as client:
        client.execute_command("SCRIPT", "FLUSH")
    proxy.asked.clear()
    (reply,) = await store.commit([commit("run", 2)])
    assert reply.refused is None
    assert proxy.asked == ["EVALSHA", "EVAL"]
    await store.commit([commit("run", 3)])
    assert proxy.asked == ["EVALSHA", "EVAL", "EVALSHA"]


async def test_a_write_whose_reply_is_lost_is_not_sent_again(
    store: RedisStore, direct: RedisStore, proxy: Proxy
) -> None:
    await store.commit([create("run")])
    proxy.asked.clear()
    proxy.lose_next = "EVALSHA"
    with pytest.raises(StoreUnavailableError, match="may have happened or not"):
        await store.commit([commit("run", 2)])
    assert proxy.asked == ["EVALSHA"]
    assert [entry.seq for entry in await direct.read_entries("run")] == [1, 2]
    (reply,) = await store.commit([commit("run", 3)])  # the next call makes a new connection
    assert reply.refused is None


async def test_a_connection_that_was_cut_while_it_was_idle_is_made_again_unnoticed(
    store: RedisStore, proxy: Proxy
) -> None:
    await store.commit([create("run")])
    proxy.cut()
    await asyncio.sleep(0)
    for _ in range(100):  # until this side has seen that it is cut
        await asyncio.sleep(0)
    (reply,) = await store.commit([commit("run", 2)])
    assert reply.refused is None


async def test_who_is_cancelled_leaves_no_reply_for_the_next_one(store: RedisStore, proxy: Proxy) -> None:
    await store.commit([create("first", flow="one"), create("second", flow="two")])
    proxy.open.clear()
    for run in ("first", "second"):
        proxy.heard.clear()
        asking = asyncio.ensure_future(store.read_heads([run]))
        await proxy.heard.wait()
        asking.cancel()
        await asyncio.wait([asking], timeout=server.ANSWER_WITHIN / 2)
        assert asking.cancelled()  # at once, and not when the time to answer is over
    proxy.open.set()
    found = await asyncio.gather(*(store.read_heads([run]) for run in ("second", "first") * 8))
    assert [head and head.flow for (head,) in found] == ["two", "one"] * 8


async def test_a_server_that_does_not_answer_is_given_up(own: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisStore(own.url("frozen"))
    await store.open()
    await store.commit([create("run")])
    store.beat(owner(ALICE), 600.0)
    own.freeze(frozen=True)
    try:
        with monkeypatch.context() as frozen:
            frozen.setattr(server, "ANSWER_WITHIN", 0.3)
            with pytest.raises(StoreUnavailableError):
                await store.commit([commit("run", 2)])
        with pytest.raises(StoreUnavailableError):
            store.beat(owner(BOB), 0.8)
    finally:
        own.freeze(frozen=False)
    assert await store.claim_runs(Query(ids=("run",)), BOB) == []  # ALICE beat while it still answered
    await store.close()


async def test_a_server_that_ends_is_found_again_when_it_is_back(own: RedisServer) -> None:
    store = RedisStore(own.url("again"))
    await store.open()
    await store.commit([create("run")])
    store.beat(owner(ALICE), 15.0)
    own.kill()
    for attempt in (store.commit([commit("run", 2)]), store.read_heads(["run"]), store.claim_runs(Query(), BOB)):
        with pytest.raises(StoreUnavailableError, match="see that the server is up"):
            await attempt
    with pytest.raises(StoreUnavailableError):
        store.beat(owner(ALICE), 15.0)
    own.start()
    store.beat(owner(ALICE), 15.0)
    (reply,) = await store.commit([commit("run", 2)])
    assert reply.refused is None
    await store.close()


async def test_who_waits_for_a_change_hears_again_after_the_server_was_gone(own: RedisServer) -> None:
    store = RedisStore(own.url("hears"))
    await store.open()
    seen = await store.wait_change(0, 0.0)
    own.kill()
    seen = await store.wait_change(seen, 1000.0)  # it returns for nothing until it hears again
    own.start()
    with own.client() as client:
        while client.pubsub_numsub("hears:any")[0][1] == 0:
            seen = await store.wait_change(seen, 1000.0)
    seen = await store.wait_change(seen, 0.01)
    waiting = asyncio.ensure_future(store.wait_change(seen, 1000.0))
    await store.commit([create("run")])
    assert await waiting != seen
    await store.close()


async def test_a_server_that_is_not_there_is_named(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(StoreUnavailableError, match="nobody-here"):
        await RedisStore(f"unix://{os.fspath(tmp_path)}/nobody-here").open()


async def test_a_closed_store_says_so(prefix: str) -> None:
    store = RedisStore(shared_server().url(prefix))
    with pytest.raises(StoreError, match="not open"):
        await store.commit([create("run")])


async def test_a_forked_child_makes_connections_of_its_own(prefix: str) -> None:
    store = RedisStore(shared_server().url(prefix))
    await store.open()
    await store.commit([create("run")])
    store.beat(owner(ALICE), 15.0)
    client = shared_server().client()
    before = {one["id"] for one in client.client_list()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(_in_child(store))
            code = 0
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [entry.seq for entry in await store.read_entries("run")] == [1, 2]
    store.beat(owner(ALICE), 15.0)
    assert {one["id"] for one in client.client_list()} == before  # those of the parent are still the same
    client.close()
    await store.close()


async def _in_child(store: RedisStore) -> None:
    (reply,) = await store.commit([commit("run", 2)])
    assert reply.refused is None
    store.beat(owner(BOB), 15.0)
    await store.close()
