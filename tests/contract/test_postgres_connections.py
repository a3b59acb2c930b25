"""A PostgreSQL store and its connections: one round trip for a batch, nothing done twice, nothing lost in silence."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Pipeline, Runtime
from holdfast.engine.committer import Committer
from holdfast.engine.introducing import Introducing
from holdfast.engine.ownership import Ownership
from holdfast.errors import StoreError, StoreUnavailableError
from holdfast.model import HeadChange, Mail, Posted, Query, Refusal
from holdfast.store.postgres import PostgresStore, connections
from holdfast.store.postgres.connections import POOL_SIZE
from holdfast.store.postgres.kept import KeptConnection
from holdfast.testing.build import ALICE, BOB, commit, create, owner
from servers.pgproxy import PgProxy, pgproxy_to
from servers.postgres import PostgresServer

AT_MOST = 20.0  # only bounds a failing test


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[PgProxy]:
    async with pgproxy_to(postgres.port) as one:
        yield one


@pytest.fixture
async def store(proxy: PgProxy, postgres: PostgresServer, postgres_store: str, postgres_url: str) -> Any:
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


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    server = PostgresServer.create()
    yield server
    server.remove()


async def settled(store: PostgresStore) -> None:
    """Return when nothing is under way and everything that others are told has been told."""
    assert store._opened is not None
    connections, channels = store._opened
    while channels._sending is not None or connections._under_way:
        await asyncio.wait({*connections._under_way, *([channels._sending] if channels._sending else [])})


async def accepted(store: PostgresStore, *batch: Any) -> None:
    assert [reply.refused for reply in await store.commit(batch)] == [None] * len(batch)


# Round trips


async def test_a_step_is_one_statement_and_one_round_trip_from_the_first_on(
    store: PostgresStore, proxy: PgProxy
) -> None:
    await accepted(store, create("run"))
    for seq in range(2, 6):
        await settled(store)
        proxy.count()
        await accepted(store, commit("run", seq))
        assert proxy.count() == (1, 1)


async def test_a_batch_of_any_size_is_one_round_trip_from_the_first_on(store: PostgresStore, proxy: PgProxy) -> None:
    runs = [f"run-{n}" for n in range(100)]
    end = HeadChange(status="completed", owner=None)
    proxy.count()
    for batch in (
        [create(run) for run in runs],
        [commit(run, 2) for run in runs],
        [commit(run, 3, change=end if n % 2 else None) for n, run in enumerate(runs)],
    ):
        await accepted(store, *batch)
        assert proxy.count() == (1, 1)
        await settled(store)
        proxy.count()


async def test_several_commits_of_one_run_are_one_round_trip_too(store: PostgresStore, proxy: PgProxy) -> None:
    await accepted(store, create("run"), commit("run", 2), commit("run", 3))
    await settled(store)
    proxy.count()
    await accepted(store, commit("run", 4), commit("run", 5), commit("run", 6, change=HeadChange(status="paused")))
    assert proxy.count()[0] == 1


async def test_asking_for_the_mail_writes_nothing(
    direct: PostgresStore, postgres: PostgresServer, postgres_store: str
) -> None:
    await accepted(direct, create("run"))
    row = f"select ctid::text, xmin::text, xmax::text from {postgres_store}.runs"  # a lock would leave its mark there
    with postgres.connect() as admin:
        before = admin.execute(row).fetchall()
        await accepted(direct, commit("run"))
        assert admin.execute(row).fetchall() == before


async def test_steps_share_the_notifications_that_others_are_sent(store: PostgresStore, proxy: PgProxy) -> None:
    await accepted(store, create("run"))
    await accepted(store, commit("run", 2))
    await settled(store)
    proxy.count()
    started = time.monotonic()
    for seq in range(3, 103):
        await accepted(store, commit("run", seq))
    await settled(store)
    most = 2 + (time.monotonic() - started) / 0.02
    # At most one in 20 ms, and one more for a new connection to send them on.
    assert 100 <= proxy.count()[0] <= 100 + most + 2


# Lost replies and lost servers


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


async def listening(server: PostgresServer, store: PostgresStore, *, but: int = 0) -> int:
    """The process of the server, another one than `but`, to which the store listens, once there is one."""
    assert store._opened is not None
    query = "select pid from pg_stat_activity where query = %s and pid <> %s"
    last = f'listen "{store._opened[1]._names[True]}"'
    with server.connect() as admin:
        while not (found := admin.execute(query, (last, but)).fetchall()):
            await store.wait_change(await store.wait_change(0, 0.0), 0.01)  # it listens once somebody waits
    return int(found[0][0])


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


# Cancelling


async def test_a_commit_goes_on_when_whoever_waits_for_it_is_cancelled(
    store: PostgresStore, direct: PostgresStore, proxy: PgProxy
) -> None:
    await accepted(store, create("run"))
    ownership = Ownership(store, lease=60.0, heartbeat=60.0)
    await ownership.begin()
    await settled(store)
    proxy.open.clear()
    proxy.heard.clear()
    committer = Committer(Introducing(store, ownership), lambda: 1)
    waiting = asyncio.ensure_future(committer.commit(commit("run", 2)))
    await asyncio.wait_for(proxy.heard.wait(), AT_MOST)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    proxy.open.set()
    await committer.drain()
    await accepted(store, commit("run", 3))  # on the same connection, behind the first
    assert [one.seq for one in await direct.read_entries("run")] == [1, 2, 3]
    await ownership.end()


async def test_a_cancelled_read_or_claim_leaves_no_broken_connection(store: PostgresStore, proxy: PgProxy) -> None:
    await accepted(store, create("run"))
    await settled(store)
    works: list[Any] = [
        lambda: store.list_heads(Query()),
        lambda: store.claim_runs(Query(ids=("run",)), BOB),
        lambda: store.post_mail("run", Mail("send")),
    ]
    for work in works * 3:
        proxy.open.clear()
        proxy.heard.clear()
        waiting = asyncio.create_task(work())
        await asyncio.wait_for(proxy.heard.wait(), AT_MOST)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        proxy.open.set()
        await settled(store)
    heads = await store.list_heads(Query())
    assert [head.id for head in heads] == ["run"]
    assert heads[0].fence == 4  # every claim was made, though nobody waited for it


# Heartbeats


async def test_a_heartbeat_gives_up_when_the_server_does_not_answer(store: PostgresStore, proxy: PgProxy) -> None:
    await asyncio.to_thread(store.beat, owner(ALICE), 60.0)
    proxy.open.clear()
    with pytest.raises(StoreUnavailableError, match="did not answer the heartbeat in time"):
        await asyncio.wait_for(asyncio.to_thread(store.beat, owner(ALICE), 0.6), AT_MOST)
    proxy.open.set()
    await asyncio.to_thread(store.beat, owner(ALICE), 60.0)
    (alice,) = await store.list_owners()
    assert alice.alive


async def test_dead_owners_that_own_nothing_are_forgotten_after_an_hour(
    direct: PostgresStore, postgres: PostgresServer, postgres_store: str
) -> None:
    for name in (ALICE, BOB):
        direct.beat(owner(name), 15.0)
    await accepted(direct, create("run", owner=ALICE))
    postgres.turn_back(postgres_store, 3500.0)
    direct.beat(owner("c" * 15), 15.0)
    assert len(await direct.list_owners()) == 3
    postgres.turn_back(postgres_store, 200.0)
    direct.beat(owner("c" * 15), 15.0)
    assert {one.id for one in await direct.list_owners()} == {ALICE, "c" * 15}


# Changes


async def test_steps_do_not_wake_those_who_wait_for_something_to_claim(
    direct: PostgresStore, store: PostgresStore, postgres: PostgresServer
) -> None:
    await accepted(store, create("run"))
    await listening(postgres, direct)
    ready, seen = await direct.wait_change(0, 0.0, ready=True), await direct.wait_change(0, 0.0)
    while (again := await direct.wait_change(seen, 0.1)) != seen:  # what was still on its way
        seen = again
    ready = await direct.wait_change(0, 0.0, ready=True)
    await accepted(store, commit("run", 2))
    assert await asyncio.wait_for(direct.wait_change(seen, AT_MOST * 2), AT_MOST) != seen
    assert await direct.wait_change(ready, 0.0, ready=True) == ready


async def test_others_are_listened_to_only_once_somebody_really_waits(direct: PostgresStore) -> None:
    await accepted(direct, create("run"))
    seen = await direct.wait_change(0, AT_MOST)
    assert direct._opened is not None
    assert direct._opened[1]._listening is None
    await direct.wait_change(seen, 0.0)
    assert direct._opened[1]._listening is not None


async def test_a_listener_that_is_lost_listens_again_and_wakes_everybody(
    direct: PostgresStore, store: PostgresStore, postgres: PostgresServer
) -> None:
    listener = await listening(postgres, direct)
    seen = await direct.wait_change(0, 0.0)
    waiting = asyncio.create_task(direct.wait_change(seen, AT_MOST * 2))
    await asyncio.sleep(0)
    with postgres.connect() as admin:
        admin.execute("select pg_terminate_backend(%s)", (listener,))
    await asyncio.wait_for(waiting, AT_MOST)
    await listening(postgres, direct, but=listener)
    seen = await direct.wait_change(0, 0.0)
    waiting = asyncio.create_task(direct.wait_change(seen, AT_MOST * 2))
    await accepted(store, create("run"))
    await asyncio.wait_for(waiting, AT_MOST)


# Forks


@pytest.mark.parametrize("opens", [True, False])
async def test_a_forked_child_has_connections_of_its_own(direct: PostgresStore, tmp_path: Path, opens: bool) -> None:
    await accepted(direct, create("run"))
    direct.beat(owner(ALICE), 60.0)
    await direct.read_heads(["run"])
    theirs = backends(direct)
    child = os.fork()
    if child == 0:
        os._exit(_child(direct, tmp_path / "said", theirs, opens=opens))
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, (tmp_path / "said").read_text()
    await accepted(direct, commit("run", 3))
    direct.beat(owner(ALICE), 60.0)
    assert backends(direct) == theirs
    assert [one.seq for one in await direct.read_entries("run")] == [1, 2, 3]
    assert {one.id for one in await direct.list_owners()} == {ALICE, BOB}


def backends(store: PostgresStore) -> set[int]:
    """The processes of the server that serve the commits and the heartbeat."""
    assert store._opened is not None
    writer, heart = store._opened[0]._writer, store._heart._connection
    assert writer is not None
    assert heart is not None
    return {writer.info.backend_pid, heart.info.backend_pid}


def _child(store: PostgresStore, said: Path, theirs: set[int], *, opens: bool) -> int:
    async def live() -> None:
        if opens:
            await store.open()
            assert store._opened is not None
            assert store._opened[0].pid == os.getpid()
        await accepted(store, commit("run", 2))
        assert [one.seq for one in await store.read_entries("run")] == [1, 2]
        store.beat(owner(BOB), 60.0)
        assert not backends(store) & theirs
        await store.close()

    signal.alarm(int(AT_MOST))  # if it hangs, nobody else waits for it
    try:
        asyncio.run(live())
    except BaseException as error:
        said.write_text(repr(error))
        return 1
    return 0


async def test_who_may_write_has_connected_when_it_is_open_and_who_only_looks_has_not(postgres: PostgresServer) -> None:
    with postgres.database() as url:
        store = PostgresStore(url)
        await store.open()
        before = connected(url)
        await asyncio.to_thread(store.beat, owner(), 30.0)
        await store.read_heads(["run"])
        await accepted(store, create("run"))  # after which others are told, by the connection for everything else
        after = connected(url)
        await store.close()
        assert after == before
        assert len(before) == 3  # for commits, for everything else, for the heart
        looking = PostgresStore(url, create=False)
        await looking.open()
        assert connected(url) <= before  # the server may still be ending those
        await looking.close()


async def test_a_store_opens_also_where_there_is_only_one_connection_to_be_had(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_WAIT_TO_BE_READY", 0.05)
    with postgres.database() as url, psycopg.connect(url, autocommit=True) as admin:
        name = url.rpartition("/")[2]
        admin.execute(f"create role lonely_{name} login connection limit 1")
        admin.execute(f"grant create on database {name} to lonely_{name}")
        store = PostgresStore(f"postgresql://lonely_{name}@{url.partition('@')[2]}")
        await store.open()
        assert len(connected(url)) == 2  # its only one, and that of the administrator
        await store.close()
        admin.execute(f"drop owned by lonely_{name} cascade; drop role lonely_{name}")


def connected(url: str) -> set[int]:
    """The processes of the server for connections to that database."""
    with psycopg.connect(url.rpartition("/")[0] + "/postgres", autocommit=True) as admin:
        theirs = "select pid from pg_stat_activity where datname = %s and backend_type = 'client backend'"
        found = admin.execute(theirs, (url.rpartition("/")[2],))
        return {int(pid) for (pid,) in found}


async def test_an_opening_that_fails_half_way_leaves_nothing_open(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any, connection: Any) -> Any:
        raise RuntimeError("something unforeseen")

    monkeypatch.setattr(connections.Connections, "_for_commits", fail)
    with postgres.database() as url:
        store = PostgresStore(url)
        with pytest.raises(RuntimeError, match="unforeseen"):
            await store.open()
        assert [task for task in asyncio.all_tasks() if "holdfast-worker" in task.get_name()] == []
        await store.close()
