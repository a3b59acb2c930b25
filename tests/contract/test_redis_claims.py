"""A claim on Redis looks first and takes then: what changes in between, and lists that are many pages long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.model import Commit, HeadChange, Limit, Mail, Query
from holdfast.store.memory import MemoryStore
from holdfast.store.redis import RedisStore, choosing, scripts
from holdfast.testing.build import ALICE, BOB, CAROL, commit, create, owner
from servers.redis import clear, new_prefix, shared_server

PENDING = (("pending", None), ("running", False))


@pytest.fixture
def prefix() -> Iterator[str]:
    prefix = new_prefix()
    yield prefix
    clear(shared_server(), prefix)


async def opened(prefix: str) -> RedisStore:
    store = RedisStore(shared_server().url(prefix))
    await store.open()
    return store


@pytest.fixture
async def store(prefix: str) -> AsyncIterator[RedisStore]:
    store = await opened(prefix)
    store.beat(owner(BOB), 1000.0)
    yield store
    await store.close()


@pytest.fixture
async def other(prefix: str, store: RedisStore) -> AsyncIterator[RedisStore]:
    other = await opened(prefix)
    yield other
    await other.close()


def unowned(run: str, **fields: Any) -> Commit:
    """A run that waits for somebody to take it."""
    return create(run, **({"owner": None, "fence": 0, "status": "pending"} | fields))


Doing = Callable[[], Awaitable[Any]]


def before_the_claim(store: RedisStore, *doings: Doing) -> list[Doing]:
    """Let something happen between what a claim has seen and what it takes, each time that it tries.

    Gives the list of what has not happened yet.
    """
    server, waiting = store._here().server, list(doings)
    ask = server.ask

    async def asked(script: scripts.Script, *values: str | bytes) -> Any:
        if script is scripts.CLAIM and waiting:
            await waiting.pop(0)()
        return await ask(script, *values)

    server.ask = asked  # type: ignore[method-assign]
    return waiting


async def paused_by(other: RedisStore, run: str) -> None:
    """Somebody takes the run, pauses it and gives it up."""
    (claim,) = await other.claim_runs(Query(ids=(run,)), CAROL)
    change = HeadChange(status="paused", owner=None)
    await other.commit([commit(run, 2, owner=CAROL, fence=claim.head.fence, change=change)])


async def test_what_was_paused_meanwhile_is_not_claimed(store: RedisStore, other: RedisStore) -> None:
    await store.commit([unowned("a"), unowned("b")])
    before_the_claim(store, lambda: paused_by(other, "a"))
    claims = await store.claim_runs(Query(ids=("a", "b"), states=PENDING), BOB)
    assert [claim.head.id for claim in claims] == ["b"]
    (head,) = await store.read_heads(["a"])
    assert head is not None
    assert (head.status, head.owner, head.fence) == ("paused", None, 1)


async def test_what_changed_meanwhile_and_still_fits_is_claimed_all_the_same(
    store: RedisStore, other: RedisStore
) -> None:
    await store.commit([unowned("a"), unowned("b")])
    before_the_claim(store, lambda: other.post_mail("a", Mail("send")), lambda: other.post_mail("a", Mail("send")))
    claims = await store.claim_runs(Query(ids=("a", "b")), BOB)
    assert {claim.head.id: len(claim.mail) for claim in claims} == {"b": 0, "a": 2}
    assert [claim.head.fence for claim in claims] == [1, 1]


async def test_what_was_deleted_and_made_anew_meanwhile_is_another_run(store: RedisStore, other: RedisStore) -> None:
    async def replaced() -> None:
        assert await other.delete_run("a")
        await other.commit([unowned("a", status="paused")])

    await store.commit([unowned("a")])
    before_the_claim(store, replaced)
    assert await store.claim_runs(Query(states=PENDING), BOB) == []


async def test_an_owner_that_comes_back_to_life_meanwhile_keeps_its_run(store: RedisStore, other: RedisStore) -> None:
    await store.commit([create("run", owner=ALICE)])
    before_the_claim(store, lambda: asyncio.to_thread(other.beat, owner(ALICE), 1000.0))
    assert await store.claim_runs(Query(), BOB) == []
    (reply,) = await store.commit([commit("run", 2)])
    assert reply.refused is None


@pytest.mark.parametrize("how", ["claimed", "made", "alive again"])
async def test_a_limit_counts_what_came_to_be_under_way_meanwhile(
    store: RedisStore, other: RedisStore, how: str
) -> None:
    other.beat(owner(CAROL), 1000.0)
    await store.commit([unowned("a"), unowned("b"), create("c", owner=ALICE, status="running")])
    meanwhile: dict[str, Doing] = {
        "claimed": lambda: other.claim_runs(Query(ids=("a",)), CAROL),
        "made": lambda: other.commit([create("d", owner=CAROL)]),
        "alive again": lambda: asyncio.to_thread(other.beat, owner(ALICE), 1000.0),
    }
    before_the_claim(store, meanwhile[how])
    query = Query(states=PENDING, in_turn=True, limits=(Limit("flow", 1),))
    assert await store.claim_runs(query, BOB) == []


@pytest.mark.parametrize("flow", ["flow", "another"])
async def test_a_limit_with_room_left_lets_a_claim_be_done_however_many_others_start(
    store: RedisStore, other: RedisStore, flow: str
) -> None:
    other.beat(owner(CAROL), 1000.0)
    await store.commit([unowned("a"), unowned("b")])
    more = [partial(other.commit, [create(f"more-{n}", owner=CAROL, flow=flow)]) for n in range(3)]
    left = before_the_claim(store, *more)
    query = Query(in_turn=True, states=PENDING, limits=(Limit("flow", 3),))
    assert [claim.head.id for claim in await store.claim_runs(query, BOB)] == ["a", "b"]
    assert len(left) == 2


async def test_a_limit_per_key_counts_what_came_to_be_under_way_meanwhile(store: RedisStore, other: RedisStore) -> None:
    other.beat(owner(CAROL), 1000.0)
    await store.commit([unowned("a", key="x"), unowned("b", key="y"), unowned("c")])
    before_the_claim(store, lambda: other.commit([create("d", owner=CAROL, key="x")]))
    query = Query(in_turn=True, states=PENDING, limits=(Limit("flow", None, 1),))
    assert [claim.head.id for claim in await store.claim_runs(query, BOB)] == ["b", "c"]


async def test_a_claim_ends_with_nothing_when_others_are_faster_each_time(store: RedisStore, other: RedisStore) -> None:
    await store.commit([unowned("a")])
    left = before_the_claim(store, *[partial(other.post_mail, "a", Mail("send"))] * 50)
    assert await store.claim_runs(Query(), BOB) == []
    assert left
    left.clear()
    assert [claim.head.id for claim in await store.claim_runs(Query(), BOB)] == ["a"]


async def test_what_was_claimed_before_the_server_was_gone_is_told(store: RedisStore, other: RedisStore) -> None:
    async def gone() -> None:
        raise StoreUnavailableError("gone")

    await store.commit([unowned("a"), unowned("b")])
    before_the_claim(store, lambda: other.post_mail("a", Mail("send")), gone)
    assert [claim.head.id for claim in await store.claim_runs(Query(), BOB)] == ["b"]


@pytest.mark.parametrize("how", ["claimed", "deleted"])
async def test_a_line_is_forgotten_when_nobody_stands_in_it_and_known_again_when_somebody_does(
    store: RedisStore, prefix: str, how: str
) -> None:
    def lines() -> set[bytes]:
        with shared_server().client() as client:
            return set(client.smembers(f"{prefix}:lines"))

    here, there = b"4:here:flow", b"5:there:flow"
    await store.commit([unowned("a", queue="here"), unowned("b", queue="here", wake_at=9.0)])
    await store.commit([create("c", owner=BOB, queue="there")])
    assert lines() == {here}
    for run, left in (("a", {here}), ("b", set())):
        if how == "deleted":
            assert await store.delete_run(run)
        else:
            assert len(await store.claim_runs(Query(ids=(run,)), BOB)) == 1
        assert lines() == left
    await store.commit([commit("c", 2, owner=BOB, change=HeadChange(owner=None))])
    assert lines() == {there}
    query = Query(in_turn=True, states=(("running", False),))
    assert [claim.head.id for claim in await store.claim_runs(query, BOB)] == ["c"]
    assert lines() == set()


async def test_a_run_whose_line_is_not_known_is_found(store: RedisStore, prefix: str) -> None:
    await store.commit([unowned("a")])
    with shared_server().client() as client:
        client.delete(f"{prefix}:lines")
    assert await store.inspect() == [("a", "its line is not known")]


STATUSES = ("pending", "running", "waiting", "completed")


def many_runs(seed: int) -> list[Commit]:
    """Runs of several queues, priorities and statuses, some of the same age."""
    dice = random.Random(seed)
    return [
        create(
            f"run-{n}",
            created_at=1000.0 + dice.randrange(20) - 10 * dice.randrange(120),
            status=dice.choice(STATUSES),
            owner=dice.choice([None, None, None, ALICE, CAROL]),
            flow=dice.choice("fg"),
            queue=dice.choice(["one", "two", "three"]),
            priority=dice.choice([-32768, -1, 0, 0, 0, 5, 32767]),
            key=dice.choice([None, "k1", "k2"]),
            wake_at=dice.choice([None, None, 50.0, 150.0]),
            parent=dice.choice([None, "above"]),
            metadata=b'{"of":%d}' % dice.randrange(4),
        )
        for n in range(60)
    ]


QUERIES = [
    Query(limit=100),
    Query(limit=7),
    Query(states=(("pending", None), ("running", False), ("waiting", None)), limit=100),
    Query(states=(("pending", None), ("completed", None)), limit=5, after=(1000.0, "run-3")),
    Query(created_from=300.0, created_before=990.0),
    Query(created_before=-5.0),
    Query(parent="above", flows=("f",), but=("run-1", "run-2")),
    Query(due_by=60.0, limit=3),
    Query(idle_by=60.0, queues=("two", "missing")),
    Query(owner=ALICE),
]
CLAIMS = [
    *(Query(in_turn=True, states=PENDING, metadata=(("of", of),), limit=1) for of in (1, 2, 3)),
    *(Query(in_turn=True, states=PENDING, limits=(Limit("f", 1),), limit=2) for _ in range(2)),
    Query(in_turn=True, due_by=60.0, limit=2),
    *(Query(in_turn=True, states=PENDING, flows=(flow,), limit=1) for flow in "gfgfgf"),
    Query(in_turn=True, limit=1),
    Query(in_turn=True, states=PENDING, limit=9),
    Query(in_turn=True, states=PENDING, flows=("g",), idle_by=60.0, limit=4),
    Query(in_turn=True, limits=(Limit("f", 3), Limit("g", None, 2)), limit=12),
    Query(in_turn=True, queues=("three",), limit=3),
    Query(in_turn=True, ids=("run-4", "run-9", "run-20")),
    Query(states=PENDING, limit=6),
    Query(in_turn=True),
]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_however_small_the_pages_lists_and_turns_are_those_of_the_store_in_memory(
    store: RedisStore, seed: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("READ_AT_LEAST", "READ_AT_MOST", "DEPTH", "_PAGE"):
        monkeypatch.setattr(choosing, setting, size)
    model = MemoryStore()
    for one in (store, model):
        await one.commit(many_runs(seed))
        for by in (BOB, CAROL):
            one.beat(owner(by), 1000.0)
    for query in QUERIES:
        assert await store.list_heads(query) == await model.list_heads(query), query
    for query in CLAIMS:
        assert await store.claim_runs(query, BOB) == await model.claim_runs(query, BOB), query
    assert await store.list_heads(Query(limit=100)) == await model.list_heads(Query(limit=100))
    assert await store.inspect() == []


@pytest.mark.parametrize("mailed", [["r1"], ["r1", "r3"], ["r1", "r2", "r3", "r4"]])
async def test_of_many_named_runs_only_those_with_mail_are_read(store: RedisStore, mailed: list[str]) -> None:
    for run in ("r1", "r2", "r3", "r4"):
        await store.commit([unowned(run)])
    for run in mailed:
        await store.post_mail(run, Mail("send", b"{}"))
    server, read = store._here().server, list[str]()
    ask = server.ask

    async def asked(script: scripts.Script, *values: str | bytes) -> Any:
        if script is scripts.HEADS:
            read.extend(msgspec.msgpack.decode(values[0]))
        return await ask(script, *values)

    server.ask = asked  # type: ignore[method-assign]
    for ids in (("r1", "r2", "r3"), ("r3", "none"), ("r2",), ()):
        expected = [run for run in ids if run in mailed]
        found = await store.list_heads(Query(ids=ids, has_mail=True))
        assert sorted(head.id for head in found) == expected
        if len(mailed) < len(ids):
            assert read == expected
        read.clear()
