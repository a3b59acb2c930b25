"""However many runs have ended and however many wait, a PostgreSQL store reads what it needs through an index.

The very statements that are used are explained on a table with 200,000 finished and 2,000 waiting runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.types.numeric import Int8

from holdfast.core.transitions import RECOVERABLE, WAITS
from holdfast.model import Limit, Query
from holdfast.store.postgres import PostgresStore, choosing, commits, selecting, statements
from holdfast.testing.build import ALICE, BOB, CAROL, commit, owner
from servers.postgres import PostgresServer

FINISHED, WAITING, PENDING, OWNED = 200_000, 2_000, 500, 300
NOW = 1_000_000.0

_FILL = """
    insert into runs (id, flow, status, owner, fence, attempt, base, floor, wake_at, queue, priority, metadata, info,
      created_at, seq, cursor, updated_at)
    select kind || '-' || k, 'flow-' || k % 5, status, owner, 1, 1, 1, 1, wake_at, 'queue-' || k % 7, k % 3, '{{}}',
      '{{}}', k, 1, 'null', k
    from (
      select 'done' as kind, k, 'completed' as status, null as owner, null::float8 as wake_at
      from generate_series(1, {finished}) k
      union all select 'waiting', k, 'waiting', null, case when k % 2 = 0 then {now} + k end
      from generate_series(1, {waiting}) k
      union all select 'due', k, 'waiting', null, {now} - k from generate_series(1, 10) k
      union all select 'later', k, 'pending', null, {now} + k from generate_series(1, {waiting}) k
      union all select 'ready', k, 'pending', null, null from generate_series(1, {pending}) k
      union all select 'owned', k, 'running', '{alice}', null from generate_series(1, {owned}) k
      union all select 'orphan', k, 'running', '{carol}', null from generate_series(1, 20) k
    ) made
"""


@pytest.fixture(scope="module")
def filled(postgres: PostgresServer) -> Iterator[str]:
    """The schema of a store with many runs."""
    with postgres.schema() as schema:
        store = PostgresStore(postgres.url(schema))
        asyncio.run(_open_and_close(store))
        fill = _FILL.format(
            finished=FINISHED, waiting=WAITING, pending=PENDING, owned=OWNED, now=NOW, alice=ALICE, carol=CAROL
        )
        with postgres.connect() as admin:
            admin.execute(f"set search_path = {schema}")
            admin.execute(fill)
            admin.execute(
                "insert into entries select n, 1, 1, 0, 'created', '', 'null', 'null' from runs where id like 'r%'"
            )
            mail = "insert into inbox (n, run, kind, body, at) select n, id, 'send', 'null', 0 from runs where id like "
            admin.execute(mail + "'waiting-11%'")
            admin.execute(
                "insert into inbox (n, run, kind, body, key, at, taken) "
                "select n, id, 'answer', '', 'k', 0, true from runs where id like 'done-1%'"
            )
            alive = "now(), now() + interval '1 hour'"
            admin.execute(f"insert into owners select o, o, '{{}}', {alive} from unnest(array['{ALICE}', '{BOB}']) o")
            for table in ("runs", "entries", "inbox", "owners"):
                admin.execute(f"analyze {table}")
        yield schema


async def _open_and_close(store: PostgresStore) -> None:
    await store.open()
    await store.close()


@pytest.fixture
async def store(postgres: PostgresServer, filled: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres.url(filled))
    await store.open()
    yield store
    await store.close()


class Plan:
    """What the server did for a statement."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.nodes = list(_below(root))

    def rows_read(self) -> int:
        """The rows of runs that were looked at, whether they fitted or not."""
        read = 0
        for node in self.nodes:
            if node.get("Relation Name") == "runs" and "Scan" in node["Node Type"]:
                each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                read += (each + node.get("Rows Removed by Index Recheck", 0)) * node["Actual Loops"]
        return int(read)

    def scans(self) -> set[str]:
        """How runs was read: Seq Scan, or the names of the indexes."""
        return {
            node.get("Index Name", node["Node Type"])
            for node in self.nodes
            if "Index Name" in node or node.get("Relation Name") == "runs"
            if "Scan" in node["Node Type"]
        }


def _below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for one in node.get("Plans", ()):
        yield from _below(one)


async def explained(store: PostgresStore, text: str, values: Any, *, commits: bool = False) -> Plan:
    """The plan of a statement, done and taken back."""

    async def work(connection: AsyncConnection) -> Any:
        async with connection.transaction(force_rollback=True):
            cursor = await connection.execute(f"explain (analyze, timing off, format json) {text}", values)
            row = await cursor.fetchone()
            assert row is not None
            return row[0]

    assert store._opened is not None
    connections = store._opened[0]
    found = await (connections.write(work) if commits else connections.do(work))
    (plan,) = json.loads(found) if isinstance(found, str) else found
    return Plan(plan["Plan"])


IN_TURN = Query(
    states=(("pending", None), ("interrupted", False), ("running", False)), idle_by=NOW, in_turn=True, limit=10
)
TURNS: dict[str, tuple[Query, int]] = {
    # Of each of the seven queues ten; the twenty that lost their owner.
    "everything that is ready": (IN_TURN, 7 * 10 + 20),
    "two queues": (
        Query(states=IN_TURN.states, queues=("queue-1", "queue-2"), idle_by=NOW, in_turn=True, limit=10),
        40,
    ),
    "some flows": (
        Query(states=IN_TURN.states, flows=("flow-1", "flow-2"), idle_by=NOW, in_turn=True, limit=10),
        7 * 30 + 20,
    ),
    "with limits": (
        Query(states=IN_TURN.states, idle_by=NOW, in_turn=True, limit=10, limits=(Limit("flow-1", 1), Limit("flow-2"))),
        7 * 15 + 20,
    ),
    "what is due": (Query(states=WAITS, due_by=NOW, in_turn=True, limit=10), 10 + 20),
    "what has mail": (Query(states=WAITS, has_mail=True, in_turn=True, limit=10), 111 + 20),
    "what has mail of a kind": (
        Query(states=WAITS, has_mail=True, mail_kinds=("send", "x"), in_turn=True, limit=10),
        2 * 111 + 20,
    ),
}


@pytest.mark.parametrize(("query", "most"), TURNS.values(), ids=TURNS)
async def test_a_claim_in_turn_reads_only_the_first_of_each_queue(
    store: PostgresStore, query: Query, most: int
) -> None:
    queues = await explained(store, choosing.QUEUES, ())
    assert queues.scans() == {"runs_ready"}
    assert queues.rows_read() <= 8
    under_way = await explained(store, choosing.UNDER_WAY, (BOB,))
    assert "Seq Scan" not in under_way.scans()
    assert under_way.rows_read() <= OWNED
    full = ({"flow-1"}, {("flow-3", "k")}) if query.limits else (set(), set())
    names = [f"queue-{n}" for n in range(7)] if query.queues is None else list(query.queues)
    lost = await explained(store, *choosing.lost_statement(query, BOB))
    free = await explained(store, *choosing.turn_statement(query, full, names, query.limit))
    assert "Seq Scan" not in lost.scans() | free.scans()
    # Those that wait and are due lie in the same index; going through the owners reads one row of each.
    assert lost.rows_read() + free.rows_read() <= most + 10 + 4


NEWEST: dict[str, tuple[Query, int]] = {
    "interrupted": (Query(states=RECOVERABLE, limit=100), 2 * WAITING + PENDING + OWNED + 30),
    "named": (Query(ids=("ready-1", "waiting-2", "done-3", "none")), 3),
    "due": (Query(states=WAITS, due_by=NOW), 10),
    "with mail": (Query(states=WAITS, has_mail=True), 111),
    "with mail of a kind": (Query(states=WAITS, has_mail=True, mail_kinds=("send", "x")), 111),
    "newest": (Query(limit=50), 50 + OWNED),
    "of an owner": (Query(owner=CAROL), 20),
    "children": (Query(parent="nobody"), 0),
    "expired": (Query(expired_by=NOW), 0),
}


@pytest.mark.parametrize(("query", "most"), NEWEST.values(), ids=NEWEST)
async def test_a_claim_or_a_list_of_the_newest_uses_an_index(store: PostgresStore, query: Query, most: int) -> None:
    for statement in (
        choosing.newest_statement(query, BOB, query.limit),
        selecting.select_heads(query, query.limit),
    ):
        plan = await explained(store, *statement)
        assert "Seq Scan" not in plan.scans()
        assert plan.rows_read() <= most


async def test_what_has_come_to_a_limit_does_not_stand_before_the_others(store: PostgresStore) -> None:
    assert store._opened is not None
    text, values = choosing.turn_statement(IN_TURN, ({"flow-1"}, set()), ["queue-1"], 10)

    async def work(connection: AsyncConnection) -> list[Any]:
        return await (await connection.execute(text, values)).fetchall()

    found = [choosing.Candidate(*row[:-1]) for row in await store._opened[0].read(work)]
    assert "flow-1" not in {one.flow for one in found}
    assert len([one for one in found if one.queue == "queue-1" and one.owner is None]) == 10


async def test_what_the_statements_claim_is_what_they_should(store: PostgresStore) -> None:
    store.beat(owner(BOB), 60.0)
    claims = await store.claim_runs(IN_TURN, BOB)
    assert len(claims) == 10
    assert {claim.head.id.partition("-")[0] for claim in claims} <= {"ready", "orphan"}
    due = await store.claim_runs(TURNS["what is due"][0], BOB)
    assert {claim.head.id for claim in due} == {f"due-{k}" for k in range(1, 11)}
    mailed = await store.claim_runs(TURNS["what has mail"][0], BOB)
    assert len(mailed) == 10
    assert all(len(claim.mail) == 1 for claim in mailed)


async def test_commits_look_their_runs_up_even_while_the_tables_are_empty(
    postgres: PostgresServer, postgres_schema: str
) -> None:
    """Their plans are made once, by whoever comes first, and kept."""
    store = PostgresStore(postgres.url(postgres_schema))  # where no other test has left anything to be counted
    await store.open()
    batch = [commit(f"run-{k:03}", 2) for k in range(100)]
    (written,) = statements.statements(list(enumerate(batch)))
    assert (await explained(store, written.text, written.values, commits=True)).scans() == {
        "runs_pkey",
        "inbox_waiting",
    }
    (entry,) = batch[0].entries
    fence, seq = Int8(entry.fence), Int8(entry.seq)
    of_step = ("run-000", batch[0].owner, fence, seq, entry.kind, fence, entry.at, "{}", entry.check, "{}")
    step = await explained(store, commits.STEP, of_step, commits=True)
    assert step.scans() == {"runs_pkey", "inbox_waiting"}
    await store.close()
