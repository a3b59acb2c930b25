"""A PostgreSQL store and its connections: one round trip for a batch, one of each that is needed, none left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.engine.committer import Committer
from holdfast.engine.introducing import Introducing
from holdfast.engine.ownership import Ownership
from holdfast.errors import StoreUnavailableError
from holdfast.model import HeadChange, Mail, Query
from holdfast.store.postgres import PostgresStore, connections
from holdfast.testing.build import ALICE, BOB, commit, create, owner
from servers.pgproxy import PgProxy
from servers.postgres import PostgresServer
from servers.postgres_watched import accepted, listening, settled

AT_MOST = 20.0  # only bounds a failing test


@pytest.fixture
def store(proxied: PostgresStore) -> PostgresStore:
    return proxied


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
