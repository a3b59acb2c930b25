"""A PostgreSQL store whose replies or servers are lost: nothing done twice, nothing lost in silence, and on it goes."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Pipeline, Runtime
from holdfast.errors import StoreError, StoreUnavailableError
from holdfast.model import Mail, Posted, Refusal
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.connections import POOL_SIZE
from holdfast.store.postgres.kept import KeptConnection
from holdfast.testing.build import ALICE, commit, create, owner
from servers.pgproxy import PgProxy
from servers.postgres import PostgresServer
from servers.postgres_watched import accepted, listening, settled

AT_MOST = 20.0  # only bounds a failing test


@pytest.fixture
def store(proxied: PostgresStore) -> PostgresStore:
    return proxied


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    server = PostgresServer.create()
    yield server
    server.remove()


async def test_a_commit_whose_reply_is_lost_is_in_doubt_and_not_sent_again(
    store: PostgresStore, direct: PostgresStore, proxy: PgProxy
) -> None:
    await accepted(store, create("run"), create("other"))
    await accepted(store, commit("run", 2))
    proxy.lose_next = "check-3"
    with pytest.raises(StoreUnavailableError, match="see to the server"):
        await store.commit([commit("run", 3)])
    assert [one.seq for one in await direct.read_entries("run")] == [1, 2, 3]
    (again,) = await store.commit([commit("run", 3)])
    assert again.refused is Refusal.GAP
    await accepted(store, commit("run", 4))


async def test_a_read_whose_reply_is_lost_is_asked_again(store: PostgresStore, proxy: PgProxy) -> None:
    await accepted(store, create("run"))
    await settled(store)
    proxy.lose_next = "a-run-to-look-for"
    assert await store.read_heads(["a-run-to-look-for"]) == [None]
    assert proxy.lost.is_set()


async def test_mail_whose_reply_is_lost_is_not_posted_again(
    store: PostgresStore, direct: PostgresStore, proxy: PgProxy
) -> None:
    await accepted(store, create("run"))
    await settled(store)
    proxy.lose_next = '"only once"'
    with pytest.raises(StoreUnavailableError):
        await store.post_mail("run", Mail("send", b'"only once"'))
    (reply,) = await direct.commit([commit("run")])
    assert [mail.body for mail in reply.mail] == [b'"only once"']


async def test_a_run_whose_step_lost_its_reply_fails_and_goes_on_behind_that_step_when_it_is_run_again(
    store: PostgresStore, direct: PostgresStore, proxy: PgProxy
) -> None:
    done: list[int] = []

    async def work(step: int, state: dict[str, Any]) -> None:
        done.append(step)
        state["seen"].append(f"marker-{step}")
        if step == 2:
            proxy.lose_next = "marker-2"

    flow = Pipeline("lossy", work, total=5)
    with pytest.raises(StoreError):
        async with Runtime(store) as rt:
            await rt.run(flow, {"seen": []}, id="run")
    async with Runtime(direct) as rt:
        result: Any = await rt.run(flow, {"seen": []}, id="run")
    assert proxy.lost.is_set()
    assert result == {"seen": [f"marker-{n}" for n in range(5)]}
    assert done == [0, 1, 2, 3, 4]


async def test_a_connection_that_was_cut_while_nobody_used_it_is_replaced(store: PostgresStore, proxy: PgProxy) -> None:
    await accepted(store, create("run"))
    await asyncio.to_thread(store.beat, owner(ALICE), 60.0)
    for seq in range(2, 5):
        await settled(store)
        proxy.cut()
        await asyncio.sleep(0)  # lets the proxy close what it holds
        await accepted(store, commit("run", seq))
        await asyncio.to_thread(store.beat, owner(ALICE), 60.0)
        assert (await store.read_heads(["run"]))[0] is not None
        assert await store.post_mail("run", Mail("send")) is Posted.ACCEPTED


async def test_the_connection_for_commits_stays_with_the_loop_until_it_is_closed(postgres_url: str) -> None:
    store, loop = PostgresStore(postgres_url), asyncio.get_running_loop()
    await store.open()
    assert store._opened is not None
    await accepted(store, create("run"))
    await accepted(store, commit("run", 2))
    connection = store._opened[0]._writer
    assert isinstance(connection, KeptConnection)
    socket = connection.fileno()
    assert connection._watched == (loop, socket)
    await store.close()
    assert not loop.remove_reader(socket)  # nothing is there that could be taken for another's


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits for an answer", "between two commits"])
async def test_a_connection_for_commits_that_is_ended_is_replaced_by_one_that_the_loop_looks_at(
    direct: PostgresStore, postgres: PostgresServer, postgres_store: str, waits: bool
) -> None:
    """The new one may have the old one's number."""
    await accepted(direct, create("run"))
    assert direct._opened is not None
    for seq in range(2, 6):
        connection = direct._opened[0]._writer
        assert connection is not None
        socket = connection.fileno()
        with postgres.connect() as admin, postgres.connect() as other:
            if waits:
                other.autocommit = False
                other.execute(f"select 1 from {postgres_store}.runs for update")
                lost = asyncio.ensure_future(direct.commit([commit("run", seq)]))
                waiting = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
                while not admin.execute(waiting, (connection.info.backend_pid,)).fetchone():
                    await asyncio.sleep(0)
            admin.execute("select pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
            if waits:
                with pytest.raises(StoreUnavailableError):
                    await lost
                assert not asyncio.get_running_loop().remove_reader(socket)
                other.rollback()
        async with asyncio.timeout(AT_MOST):
            await accepted(direct, commit("run", seq))


async def test_when_the_server_has_closed_every_connection_the_next_call_gets_a_new_one_at_once(
    direct: PostgresStore, postgres: PostgresServer
) -> None:
    """As after a restart. The pool's own check would rest for one, two and four seconds first."""
    assert direct._opened is not None
    all_here = asyncio.Barrier(POOL_SIZE)

    async def work(connection: Any) -> Any:
        await all_here.wait()
        return connection

    used = await asyncio.gather(*(direct._opened[0].do(work) for _ in range(POOL_SIZE)))
    with postgres.connect() as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from unnest(%s::int[]) pid", ([one.info.backend_pid for one in used],)
        )
    for one in used:
        hung_up = select.poll()
        hung_up.register(one.fileno(), select.POLLRDHUP)
        assert hung_up.poll(AT_MOST * 1000)
    async with asyncio.timeout(3.0):
        assert await direct.post_mail("run", Mail("send")) is Posted.NO_RUN


async def test_who_waits_for_the_server_has_a_connection_soon_after_it_is_back(
    store: PostgresStore, proxy: PgProxy
) -> None:
    """Five tries in vain. The pool would rest for one, two, four and eight seconds between them, and give up."""
    await settled(store)
    proxy.cut()
    await asyncio.sleep(0)  # lets the proxy close what it holds
    proxy.refuse = 5
    assert await store.read_heads(["run"]) == [None]
    assert proxy.refuse == 0


async def test_after_a_restart_of_the_server_the_next_call_works(own: PostgresServer) -> None:
    store = PostgresStore(own.url())
    await store.open()
    try:
        await accepted(store, create("run"))
        await listening(own, store)
        for seq in (2, 4):
            own.stop("immediate")
            with pytest.raises(StoreUnavailableError, match="Start the server"):
                await store.commit([commit("run", seq)])
            with pytest.raises(StoreUnavailableError):
                await asyncio.to_thread(store.beat, owner(ALICE), 60.0)
            own.start()
            await accepted(store, commit("run", seq))
            await asyncio.to_thread(store.beat, owner(ALICE), 60.0)
            own.stop("immediate")
            own.start()
            await accepted(store, commit("run", seq + 1))
            assert [one.seq for one in await store.read_entries("run")] == list(range(1, seq + 2))
            await asyncio.to_thread(store.beat, owner(ALICE), 60.0)
        # Whoever waits hears again of what others do.
        other = PostgresStore(own.url())
        await other.open()
        await listening(own, store)
        waiting = asyncio.create_task(store.wait_change(await store.wait_change(0, 0.0), AT_MOST * 2))
        await accepted(other, create("new"))
        await asyncio.wait_for(waiting, AT_MOST)
        await other.close()
    finally:
        await store.close()


async def test_a_call_under_way_when_the_server_stops_says_that_it_is_in_doubt(
    own: PostgresServer,
) -> None:
    store = PostgresStore(own.url())
    await store.open()
    try:
        await accepted(store, create("run"))
        with own.connect() as admin, admin.transaction():
            admin.execute("lock table holdfast.entries")
            waiting = asyncio.create_task(store.commit([commit("run", 2)]))
            await blocked(own)
            own.stop("immediate")
            with pytest.raises(StoreUnavailableError, match="Nothing unacknowledged"):
                await asyncio.wait_for(waiting, AT_MOST)
            admin.close()
        own.start()
        assert [one.seq for one in await store.read_entries("run")] == [1]
    finally:
        await store.close()


async def blocked(server: PostgresServer) -> None:
    """Return when somebody waits for a lock."""
    with server.connect() as admin:
        while not admin.execute("select 1 from pg_stat_activity where wait_event_type = 'Lock'").fetchall():
            await asyncio.sleep(0.01)


async def test_when_all_connections_are_in_use_for_too_long_that_is_said(direct: PostgresStore) -> None:
    assert direct._opened is not None
    connections = direct._opened[0]
    done, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def work(connection: Any) -> None:
        begun.release()
        await done.wait()

    using = [asyncio.create_task(connections.do(work)) for _ in range(4)]
    for _ in using:
        await begun.acquire()
    connections._pool.timeout = 0.1
    with pytest.raises(StoreUnavailableError, match="couldn't get a connection"):
        await direct.read_heads(["run"])
    await accepted(direct, create("run"))  # has a connection of its own
    done.set()
    await asyncio.gather(*using)
    connections._pool.timeout = AT_MOST
    assert (await direct.read_heads(["run"]))[0] is not None
