"""Several who use one PostgreSQL store at once: who waits for whom, and what is found when somebody damaged it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from holdfast.errors import StoreDamagedError, StoreUnavailableError
from holdfast.model import Commit, HeadChange, Limit, Mail, Posted, Query, Refusal
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres import store as statements
from holdfast.store.postgres.schema import lock_number
from holdfast.testing.build import BOB, CAROL, commit, create, entry, owner
from servers.postgres import PostgresServer

AT_MOST = 20.0  # only bounds a failing test


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[list[PostgresStore]]:
    """Three objects on the same store, as three processes have them."""
    stores = [PostgresStore(postgres_url) for _ in range(3)]
    for store in stores:
        await store.open()
    yield stores
    for store in stores:
        await store.close()


@pytest.fixture
def admin(postgres: PostgresServer, postgres_store: str) -> Any:
    """A connection of somebody who looks in, with a transaction of its own."""
    with psycopg.connect(postgres.url(), cursor_factory=psycopg.RawCursor) as connection:
        connection.execute(f"set search_path = {postgres_store}")
        connection.commit()
        yield connection
        connection.rollback()


def unowned(run: str, **fields: Any) -> Commit:
    return create(run, owner=None, fence=0, status="pending", **fields)


async def waits(server: PostgresServer, task: asyncio.Task[Any], holder: psycopg.Connection[Any]) -> bool:
    """Whether the task comes to wait for a lock of the holder before it ends."""
    blocked = "select 1 from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
    with server.connect() as looking:
        while not task.done():
            if looking.execute(blocked, (holder.info.backend_pid,)).fetchall():
                return True
            await asyncio.sleep(0.01)
    return False


async def test_batches_of_the_same_runs_never_wait_for_each_other_in_a_circle(
    stores: list[PostgresStore], postgres: PostgresServer
) -> None:
    runs = [f"run-{n:03}" for n in range(150)]
    await stores[0].commit([create(run) for run in runs])
    rounds = 6
    with postgres.connect() as looking:
        deadlocks = "select sum(deadlocks) from pg_stat_database"
        before = looking.execute(deadlocks).fetchone()

        async def push(store: PostgresStore, order: list[str]) -> None:
            for turn in range(rounds):
                made = [create(f"{run}-{turn}") for run in order]
                await store.commit([*made, *(commit(run, entries=(entry(turn + 2),)) for run in order)])

        await asyncio.gather(push(stores[0], runs), push(stores[1], runs[::-1]), push(stores[2], runs[75:] + runs[:75]))
        for store in stores:
            await store.close()
        assert looking.execute(deadlocks).fetchone() == before
    await stores[0].open()
    assert {head.seq for head in await stores[0].read_heads(runs) if head is not None} == {rounds + 1}
    assert await stores[0].inspect() == []


async def test_new_runs_are_made_in_the_order_of_their_ids(
    stores: list[PostgresStore], postgres: PostgresServer, postgres_store: str, admin: psycopg.Connection[Any]
) -> None:
    await stores[0].commit([create("like")])
    changed = "(jsonb_populate_record(r, jsonb_build_object('id', $1::text, 'n', -ascii($1)))).*"
    made = f"insert into {postgres_store}.runs overriding system value select {changed} from {postgres_store}.runs r "
    made += "where id = 'like'"
    admin.execute(made, ("m",))
    batch = asyncio.create_task(stores[0].commit([create("z"), create("m"), create("a")]))
    assert await waits(postgres, batch, admin)
    with psycopg.connect(postgres.url(), autocommit=True, cursor_factory=psycopg.RawCursor) as other:
        # It has come to `m`: nobody has to wait for it at `z`.
        other.execute("set lock_timeout = '5s'")
        other.execute(made, ("z",))
    admin.rollback()
    replies = await asyncio.wait_for(batch, AT_MOST)
    assert [reply.refused for reply in replies] == [Refusal.EXISTS, None, None]


async def test_mail_gets_its_number_when_the_mail_before_it_can_be_seen(
    stores: list[PostgresStore], postgres: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    await stores[0].commit([create("run")])
    admin.execute(statements._POST_MAIL, ("run", "send", "1", None))
    second = asyncio.create_task(stores[0].post_mail("run", Mail("send", b"2")))
    assert await waits(postgres, second, admin)
    admin.commit()
    assert await asyncio.wait_for(second, AT_MOST) is Posted.ACCEPTED
    (reply,) = await stores[1].commit([commit("run")])
    assert [mail.body for mail in reply.mail] == [b"1", b"2"]


async def test_mail_that_comes_while_the_end_of_a_run_waits_for_its_row_is_heard_first(
    stores: list[PostgresStore], postgres: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    await stores[0].commit([create("run"), create("other")])
    admin.execute(statements._POST_MAIL, ("run", "cancel", "1", None))
    end = HeadChange(status="completed", owner=None)
    batch = [commit(run, 2, change=end, heard=0) for run in ("run", "other")]
    ending = asyncio.create_task(stores[0].commit(batch))
    assert await waits(postgres, ending, admin)
    admin.commit()
    replies = await asyncio.wait_for(ending, AT_MOST)
    assert [reply.refused for reply in replies] == [Refusal.UNHEARD, None]


async def test_what_is_written_while_a_run_is_being_deleted_goes_with_it(
    stores: list[PostgresStore], postgres: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    await stores[0].commit([create("run")])
    admin.execute("update runs set seq = 2 where id = 'run'")
    admin.execute("insert into entries select n, 2, 1, 0, 'late', '', 'null', 'null' from runs where id = 'run'")
    deleting = asyncio.create_task(stores[0].delete_run("run"))
    assert await waits(postgres, deleting, admin)
    admin.commit()
    assert await asyncio.wait_for(deleting, AT_MOST)
    assert await stores[1].inspect() == []


async def test_a_claim_by_name_waits_for_whoever_writes_the_run_and_any_other_passes_it_over(
    stores: list[PostgresStore], postgres: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    await stores[0].commit([unowned("busy", created_at=9.0), unowned("free", created_at=1.0)])
    stores[0].beat(owner(BOB), 60.0)
    stores[0].beat(owner(CAROL), 60.0)
    admin.execute("select 1 from runs where id = 'busy' for update")
    taken = await asyncio.wait_for(stores[1].claim_runs(Query(limit=2), BOB), AT_MOST)
    assert [claim.head.id for claim in taken] == ["free"]
    by_name = asyncio.create_task(stores[2].claim_runs(Query(ids=("busy",)), CAROL))
    assert await waits(postgres, by_name, admin)
    admin.commit()
    (claim,) = await asyncio.wait_for(by_name, AT_MOST)
    assert (claim.head.id, claim.head.owner) == ("busy", CAROL)


async def test_a_run_that_changed_after_it_was_chosen_is_not_taken(
    stores: list[PostgresStore], postgres: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    await stores[0].commit([create("run", owner=CAROL)])
    admin.execute("update runs set status = 'completed' where id = 'run'")
    query = Query(ids=("run",), states=(("running", False),))
    claim = asyncio.create_task(stores[0].claim_runs(query, BOB))
    assert await waits(postgres, claim, admin)
    admin.commit()
    assert await asyncio.wait_for(claim, AT_MOST) == []


async def test_those_who_fill_a_limit_go_one_after_the_other(
    stores: list[PostgresStore], postgres: PostgresServer, postgres_store: str, admin: psycopg.Connection[Any]
) -> None:
    await stores[0].commit([unowned("f", flow="f"), unowned("g", flow="g")])
    stores[0].beat(owner(BOB), 60.0)
    number = lock_number("holdfast", postgres_store, "f")
    admin.execute("select pg_advisory_xact_lock($1)", (number,))
    limits = (Limit("f", 1),)
    limited = asyncio.create_task(stores[0].claim_runs(Query(in_turn=True, flows=("f",), limits=limits), BOB))
    assert await waits(postgres, limited, admin)
    free = Query(in_turn=True, flows=("g",), limits=(Limit("g", 1),))
    assert len(await asyncio.wait_for(stores[1].claim_runs(free, BOB), AT_MOST)) == 1
    admin.rollback()
    assert len(await asyncio.wait_for(limited, AT_MOST)) == 1


async def test_whoever_stops_in_the_middle_of_a_claim_does_not_keep_its_locks(stores: list[PostgresStore]) -> None:
    async def ask(connection: Any) -> Any:
        return await (await connection.execute("show idle_in_transaction_session_timeout")).fetchone()

    opened = stores[0]._opened
    assert opened is not None
    assert await opened[0].do(ask) == await opened[0].write(ask) == ("10s",)


# Damage

DAMAGE: dict[str, tuple[str, tuple[str | None, str]]] = {
    "a log that is gone": ("delete from entries where n = {n}", ("run", "the run has no log")),
    "a gap": ("delete from entries where n = {n} and seq = 2", ("run", "its log has gaps")),
    "an end that is gone": (
        "delete from entries where n = {n} and seq = 3",
        ("run", "its log ends at 2, but the run says 3"),
    ),
    "a run that is gone": ("delete from runs where n = {n}", (None, "3 entries belong to no run")),
    "mail of nobody": ("update inbox set n = 0", (None, "1 pieces of mail belong to no run")),
    "a trigger of somebody else": (
        "create trigger theirs before update on runs for each row "
        "execute function suppress_redundant_updates_trigger()",
        (None, "table runs has a trigger that is not ours: theirs"),
    ),
}


@pytest.mark.parametrize(("harm", "found"), DAMAGE.values(), ids=DAMAGE)
async def test_damage_is_found(
    stores: list[PostgresStore],
    postgres: PostgresServer,
    postgres_store: str,
    harm: str,
    found: tuple[str | None, str],
) -> None:
    await stores[0].commit([create("run"), commit("run", 2, 3), create("sound"), commit("sound", 2)])
    await stores[0].post_mail("sound", Mail("send"))
    assert await stores[0].inspect() == []
    with postgres.connect() as harming:
        harming.execute(f"set search_path = {postgres_store}")
        row = harming.execute("select n from runs where id = 'run'").fetchone()
        assert row is not None
        harming.execute(harm.format(n=row[0]))
    try:
        assert await stores[1].inspect() == [found]
    finally:
        with postgres.connect() as mending:
            mending.execute("set client_min_messages = warning")
            mending.execute(f"drop trigger if exists theirs on {postgres_store}.runs")


@pytest.fixture
async def crowded(stores: list[PostgresStore], admin: psycopg.Connection[Any]) -> PostgresStore:
    """A store in which an entry of the run `bad` stands already where its next one goes."""
    await stores[0].commit([create("bad"), create("a"), create("z")])
    admin.execute("insert into entries select n, 2, 1, 0, 'theirs', '', 'null', 'null' from runs where id = 'bad'")
    admin.commit()
    return stores[0]


@pytest.mark.parametrize("more", [{}, {"change": HeadChange(status="completed")}], ids=["a step", "an end"])
async def test_a_run_whose_next_entry_has_no_room_is_refused_and_takes_no_other_with_it(
    crowded: PostgresStore, more: dict[str, Any]
) -> None:
    batch = [commit("a", 2), commit("bad", 2, **more), create("new"), commit("z", 2), commit("z", 3)]
    replies = await crowded.commit(batch)
    assert [reply.refused for reply in replies] == [None, Refusal.STALE, None, None, None]
    heads = await crowded.read_heads(["a", "bad", "new", "z"])
    assert [head and (head.seq, head.status) for head in heads] == [
        (2, "running"),
        (1, "running"),
        (1, "running"),
        (3, "running"),
    ]
    assert await crowded.inspect() == [("bad", "its log ends at 2, but the run says 1")]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_run_whose_next_entry_has_no_room_is_named_where_it_is_alone(
    crowded: PostgresStore, count: int
) -> None:
    with pytest.raises(StoreDamagedError, match="its next entry has no room") as caught:
        await crowded.commit([commit("bad", seq) for seq in range(2, 2 + count)])
    assert caught.value.run_id == "bad"


# A restore of the data alone


@pytest.fixture
async def restored(stores: list[PostgresStore], admin: psycopg.Connection[Any]) -> PostgresStore:
    """A store with three runs, whose numbers begin anew; the beginning of the first one's log was dropped."""
    await stores[0].commit([create("old"), commit("old", 2), create("older"), create("oldest")])
    await stores[0].commit([commit("old", rebase=entry(2), change=HeadChange(base=2, floor=2))])
    admin.execute("select setval('runs_n_seq', (select min(n) from runs), false)")
    admin.commit()
    return stores[0]


@pytest.mark.parametrize(("writers", "each"), [(1, 1), (3, 3)])
async def test_a_new_run_never_gets_the_number_of_another_though_the_numbers_begin_anew(
    restored: PostgresStore, stores: list[PostgresStore], admin: psycopg.Connection[Any], writers: int, each: int
) -> None:
    news = [[create(f"new-{n}-{k}") for k in range(each)] for n in range(writers)]
    told = await asyncio.gather(*(store.commit(some) for store, some in zip(stores, news, strict=False)))
    assert [reply.refused for replies in told for reply in replies] == [None] * writers * each
    count = 3 + writers * each
    assert admin.execute("select count(distinct n), count(*) from runs").fetchone() == (count, count)
    assert [one.seq for one in await restored.read_entries("old")] == [2]
    assert await restored.inspect() == []


async def test_a_user_who_may_not_set_the_numbers_forward_is_told_how(
    restored: PostgresStore, postgres: PostgresServer, postgres_store: str
) -> None:
    user = f"worker_{postgres_store}"
    with postgres.connect() as owner_of_all:
        owner_of_all.execute(f"create role {user} login; grant usage on schema {postgres_store} to {user}")
        tables = f"all tables in schema {postgres_store}"
        owner_of_all.execute(f"grant select, insert, update, delete on {tables} to {user}")
        store = PostgresStore(postgres.url(postgres_store, user=user))
        try:
            await store.open()
            with pytest.raises(StoreUnavailableError, match="for sequence") as caught:
                await store.commit([create("new")])
            owner_of_all.execute(str(caught.value).partition("Let an administrator run: ")[2])
            assert (await store.commit([create("new")]))[0].refused is None
        finally:
            await store.close()
            owner_of_all.execute(f"drop owned by {user}; drop role {user}")
