"""A Redis store whose keys somebody changed, or the server dropped: told by name, and nothing half written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from holdfast.errors import StoreDamagedError, StoreError, StoreVersionError
from holdfast.model import Commit, HeadChange, Limit, Mail, Query, Refusal
from holdfast.store.redis import RedisStore
from holdfast.testing.build import BOB, CAROL, commit, create, entry, owner
from servers.redis import clear, new_prefix, shared_server


@pytest.fixture
def prefix() -> Iterator[str]:
    prefix = new_prefix()
    yield prefix
    clear(shared_server(), prefix)


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with shared_server().client() as client:
        yield client


@pytest.fixture
async def store(prefix: str) -> AsyncIterator[RedisStore]:
    """A store with two runs that have all that a run can have."""
    store = RedisStore(shared_server().url(prefix))
    await store.open()
    await store.commit([create(run, parent="above", wake_at=9.0, expires_at=8e9) for run in ("bad", "good")])
    for run in ("bad", "good"):
        for key in ("taken", "waiting"):
            await store.post_mail(run, Mail("answer", b"1", key))
        await store.commit([commit(run, 2, 3, take=(1,))])
    yield store
    await store.close()


def replaced(client: redis.Redis, key: str) -> None:
    """Put a key of a type that the store never uses in its place."""
    client.delete(key)
    client.set(key, "not ours")


def dropped(client: redis.Redis, key: str) -> None:
    """Do what an eviction does."""
    client.delete(key)


Harm = Callable[[redis.Redis, str], None]
HARMS: list[Any] = [replaced, dropped]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", ["head", "log", "mail", "used"])
async def test_a_harmed_run_is_named_and_the_others_go_on(
    store: RedisStore, client: redis.Redis, prefix: str, kind: str, harm: Harm
) -> None:
    harm(client, f"{prefix}:{kind}:bad")
    for attempt in (
        lambda: store.commit([commit("bad", 4)]),
        lambda: store.read_heads(["bad"]),
        lambda: store.read_entries("bad"),
        lambda: store.post_mail("bad", Mail("send")),
    ):
        with pytest.raises(StoreDamagedError) as raised:
            await attempt()
        assert raised.value.run_id == "bad"
    replies = await store.commit([commit("bad", 4), commit("good", 4), create("bad")])
    assert [reply.refused for reply in replies] == [Refusal.STALE, None, Refusal.EXISTS]
    assert [entry.seq for entry in await store.read_entries("good")] == [1, 2, 3, 4]
    assert [claim.head.id for claim in await store.claim_runs(Query(), BOB)] == ["good"]
    assert "good" in [head.id for head in await store.list_heads(Query())]
    assert {run for run, _ in await store.inspect()} == {"bad"}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", ["head", "log", "mail", "used"])
async def test_a_harmed_run_can_be_deleted_and_leaves_nothing_behind(
    store: RedisStore, client: redis.Redis, prefix: str, kind: str, harm: Harm
) -> None:
    harm(client, f"{prefix}:{kind}:bad")
    assert await store.delete_run("bad") is True
    assert await store.inspect() == []
    (reply,) = await store.commit([create("bad")])
    assert reply.refused is None
    assert [mail.key for mail in (await store.commit([commit("good")]))[0].mail] == ["waiting"]


@pytest.mark.parametrize("field", ["fence", "seq", "first", "place", "status", "created_at", "mails", "rev", "wake_at"])
async def test_a_head_that_was_tampered_with_is_named(
    store: RedisStore, client: redis.Redis, prefix: str, field: str
) -> None:
    if field in ("status", "place"):
        client.hdel(f"{prefix}:head:bad", field)
    else:
        client.hset(f"{prefix}:head:bad", field, "no number")
    with pytest.raises(StoreDamagedError) as raised:
        await store.read_heads(["bad"])
    assert raised.value.run_id == "bad"
    assert [head.id for head in await store.list_heads(Query(ids=("good", "bad")))] == ["good"]
    assert "bad" in {run for run, _ in await store.inspect()} or field == "created_at"


async def test_an_entry_that_is_no_entry_is_named_and_its_run_not_owned(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    client.lset(f"{prefix}:log:bad", 1, b"\xff\xfe not one of ours")
    with pytest.raises(StoreDamagedError) as raised:
        await store.read_entries("bad")
    assert raised.value.run_id == "bad"
    store.beat(owner(BOB), 1000.0)
    assert [claim.head.id for claim in await store.claim_runs(Query(), BOB)] == ["good"]
    with pytest.raises(StoreDamagedError):
        await store.claim_runs(Query(ids=("bad",)), BOB)
    (head,) = await store.read_heads(["bad"])
    assert head is not None
    assert head.owner is None
    assert await store.inspect() == []


def garbled(client: redis.Redis, key: str) -> None:
    """Leave a log that only its reader finds to be none."""
    client.lset(key, 0, b"not one of ours")


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("harm", [garbled, dropped])
async def test_damaged_runs_take_nobodys_turn_and_are_not_taken_up(
    store: RedisStore, client: redis.Redis, prefix: str, harm: Harm, in_turn: bool
) -> None:
    store.beat(owner(BOB), 1000.0)
    await store.commit([create(run, owner=None, status="pending") for run in ("1", "2", "3", "4", "5")])
    for run in ("1", "2", "4", "5"):
        harm(client, f"{prefix}:log:{run}")
    for sound in (["3"], []):
        query = Query(in_turn=in_turn, states=(("pending", False),), limit=1)
        assert [claim.head.id for claim in await store.claim_runs(query, BOB)] == sound
    found = client.hmget(f"{prefix}:head:1", "owner", "attempt")
    assert found == [None, b"1"]


async def test_nobody_is_called_to_a_damaged_run_that_was_given_back(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    await store.commit([create("1", owner=None, status="pending")])
    garbled(client, f"{prefix}:log:1")
    with client.pubsub(ignore_subscribe_messages=True) as calls:
        calls.subscribe(f"{prefix}:ready")
        assert calls.get_message(timeout=10.0) is None  # it listens now
        assert await store.claim_runs(Query(in_turn=True, states=(("pending", False),)), BOB) == []
        client.publish(f"{prefix}:ready", "the first call")
        message = calls.get_message(timeout=10.0)
        assert message is not None
        assert message["data"] == b"the first call"


async def test_a_counter_that_is_no_number_stops_a_script_before_it_writes(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    client.hset(f"{prefix}:meta", "rev", "many")
    before = {key: client.dump(key) for key in client.scan_iter(match=f"{prefix}:*", count=1000)}
    for name in ("commit", "claim", "mail"):
        with pytest.raises(StoreDamagedError, match="rev"):
            await OPERATIONS[name](store)
    assert {key: client.dump(key) for key in client.scan_iter(match=f"{prefix}:*", count=1000)} == before


HOLDS = f"+{CAROL} ".encode()
BROKEN: list[tuple[str, bytes, bytes]] = [
    ("owned", b"good", HOLDS + b"rubbish"),
    ("owned", b"good", HOLDS + b'["flo'),
    ("owned", b"good", HOLDS + b'["\xff","default",null]'),
    ("owned", b"\xff", HOLDS + b'["flow","default",null]'),
    ("owned", b"good", b"\xff"),
    ("owners", CAROL.encode(), b"rubbish"),
    ("owners", CAROL.encode(), b'["\xff","{}"]'),
    ("owners", b"\xff", b'["host","{}"]'),
    ("lines", b"\xffrubbish", b""),
    ("lines", b"4:\xff\xff\xff\xff:flow", b""),
    ("due", b"\xff", b""),
    ("leases", b"\xff", b""),
]


@pytest.mark.parametrize(("key", "field", "value"), BROKEN)
async def test_what_cannot_be_read_in_a_shared_key_is_left_out_and_the_others_go_on(
    store: RedisStore, client: redis.Redis, prefix: str, key: str, field: bytes, value: bytes
) -> None:
    for one in (BOB, CAROL):
        store.beat(owner(one), 1000.0)
    await store.commit([create(f"free-{n}", owner=None, status="pending", wake_at=9.0) for n in range(4)])
    if value:
        client.hset(f"{prefix}:{key}", field, value)
    elif key == "lines":
        client.sadd(f"{prefix}:{key}", field)
    else:
        client.zadd(f"{prefix}:{key}", {field: 1.0})
    pending = Query(states=(("pending", False),), limit=1)
    for n, given in enumerate(({"in_turn": True}, {"due_by": 100.0}, {"in_turn": True, "limits": (Limit("flow", 9),)})):
        assert len(await store.claim_runs(replace(pending, **given), BOB)) == 1, n  # type: ignore[arg-type]
    assert {head.id for head in await store.list_heads(Query(due_by=100.0))} >= {"good", "free-0"}
    assert [len(await store.list_heads(Query(owner=one))) for one in (BOB, CAROL)] == [3, 0]
    assert BOB in {one.id for one in await store.list_owners()}
    await store.inspect()


async def test_what_claims_and_lists_of_owners_leave_out_is_found(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    store.beat(owner(CAROL), 1000.0)
    client.hset(f"{prefix}:owners", CAROL, "rubbish")
    client.sadd(f"{prefix}:lines", "rubbish", "sweepings")
    (first, owners), *lines = await store.inspect()
    assert first is None
    assert CAROL in owners
    assert {text for _, text in lines} == {f"b'{word}' is no line of a queue" for word in ("rubbish", "sweepings")}


@pytest.mark.parametrize("key", ["owners", "leases", "lines"])
async def test_a_shared_key_of_another_type_is_found(
    store: RedisStore, client: redis.Redis, prefix: str, key: str
) -> None:
    store.beat(owner(CAROL), 1000.0)
    replaced(client, f"{prefix}:{key}")
    client.delete(f"{prefix}:log:bad")
    found = await store.inspect()
    assert ("bad", "entries of its log are missing") in found
    assert any(run is None and "another type" in text for run, text in found)


OPERATIONS: dict[str, Callable[[RedisStore], Awaitable[Any]]] = {
    "commit": lambda store: store.commit(
        [
            commit("good", 4, change=HeadChange(status="failed", owner=None, wake_at=7.0, expires_at=9e9), take=(2,)),
            commit("bad", 4, 5, rebase=entry(2), change=HeadChange(status="waiting", owner=BOB, expires_at=None)),
            create("new", parent="above"),
        ]
    ),
    "claim": lambda store: store.claim_runs(Query(), BOB),
    "claim in turn": lambda store: store.claim_runs(Query(in_turn=True), BOB),
    "mail": lambda store: store.post_mail("good", Mail("answer", b"1", "new")),
    "delete": lambda store: store.delete_run("good"),
    "retire": lambda store: store.retire_owner(CAROL),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_whatever_key_is_of_another_type_nothing_is_half_written(
    store: RedisStore, client: redis.Redis, prefix: str, name: str
) -> None:
    store.beat(owner(CAROL), 1000.0)
    await store.commit([create("free", owner=None, status="pending")])
    keys = {key.decode(): client.dump(key) for key in client.scan_iter(match=f"{prefix}:*", count=1000)}
    assert len(keys) > 20
    for key in keys:
        replaced(client, key)
        with suppress(StoreDamagedError):
            await OPERATIONS[name](store)
        if client.type(key) == b"string":  # unless it was the key of a run that has been deleted
            client.restore(key, 0, keys[key], replace=True)
        assert await store.inspect() == [], key
        for other in client.scan_iter(match=f"{prefix}:*", count=1000):
            client.delete(other)
        for other, content in keys.items():
            client.restore(other, 0, content)


BATCHES: dict[str, list[Commit]] = {
    "in:failed": [create("new"), commit("new", 2, change=HeadChange(status="failed"))],
    "turn:paused:7:default:flow": [
        commit("good", 4, change=HeadChange(status="paused", wake_at=None)),
        commit("good", 9, change=HeadChange(status="waiting")),  # refused, so it is still paused
        commit("good", 5, change=HeadChange(owner=None)),
    ],
    "later:running:7:default:flow": [
        commit("good", rebase=entry(3)),
        commit("good", rebase=entry(2), change=HeadChange(status="failed")),  # gone by then, so it still runs
        commit("good", 4, change=HeadChange(owner=None)),
    ],
}


@pytest.mark.parametrize("index", BATCHES)
async def test_an_index_that_only_a_later_commit_of_a_batch_comes_to_is_looked_at_before_the_first_is_written(
    store: RedisStore, client: redis.Redis, prefix: str, index: str
) -> None:
    client.set(f"{prefix}:{index}", "not ours")
    before = {key: client.dump(key) for key in client.scan_iter(match=f"{prefix}:*", count=1000)}
    with pytest.raises(StoreDamagedError, match=index):
        await store.commit([create("other"), *BATCHES[index]])
    assert {key: client.dump(key) for key in client.scan_iter(match=f"{prefix}:*", count=1000)} == before


async def test_a_store_of_a_newer_version_is_refused_unchanged(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    client.hset(f"{prefix}:meta", "version", "999")
    before = {key: client.dump(key) for key in client.scan_iter(match=f"{prefix}:*", count=1000)}
    with pytest.raises(StoreVersionError) as raised:
        await RedisStore(shared_server().url(prefix)).open()
    assert (raised.value.found, raised.value.supported) == (999, 1)
    assert {key: client.dump(key) for key in client.scan_iter(match=f"{prefix}:*", count=1000)} == before


@pytest.mark.parametrize("version", ["0", "-1", "one", "", "1.0"])
async def test_a_version_that_never_was_is_damage(
    store: RedisStore, client: redis.Redis, prefix: str, version: str
) -> None:
    client.hset(f"{prefix}:meta", "version", version)
    with pytest.raises(StoreDamagedError, match="version"):
        await RedisStore(shared_server().url(prefix)).open()


@pytest.mark.parametrize("harm", HARMS)
async def test_a_store_without_its_version_is_damaged_and_not_begun_anew(
    store: RedisStore, client: redis.Redis, prefix: str, harm: Harm
) -> None:
    harm(client, f"{prefix}:meta")
    with pytest.raises(StoreDamagedError):
        await RedisStore(shared_server().url(prefix)).open()


@pytest.mark.parametrize("writes", ["nothing", "a run"])
async def test_a_store_that_lost_everything_while_it_was_open_is_one_that_others_can_open(
    store: RedisStore, client: redis.Redis, prefix: str, writes: str
) -> None:
    clear(shared_server(), prefix)
    store.beat(owner(), 1000.0)
    if writes == "a run":
        await store.commit([create("first"), create("second")])
        assert client.hget(f"{prefix}:meta", "version") == b"1"
    other = RedisStore(shared_server().url(prefix), create=writes == "nothing")
    await other.open()
    assert len(await other.list_heads(Query())) == (0 if writes == "nothing" else 2)
    assert await other.inspect() == []
    await other.close()


async def test_writing_does_not_make_a_store_whole_that_has_lost_its_version(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    client.delete(f"{prefix}:meta")
    await store.commit([create("new")])
    with pytest.raises(StoreDamagedError, match="version"):
        await RedisStore(shared_server().url(prefix)).open()


async def test_with_create_false_a_prefix_without_a_store_is_refused_and_stays_empty(client: redis.Redis) -> None:
    empty = new_prefix()
    with pytest.raises(StoreError, match="does not exist"):
        await RedisStore(shared_server().url(empty), create=False).open()
    assert list(client.scan_iter(match=f"{empty}*", count=1000)) == []


async def test_prefixes_do_not_see_each_other(store: RedisStore, prefix: str) -> None:
    other = RedisStore(shared_server().url(f"{prefix}.b"))
    await other.open()
    await other.commit([create("bad", flow="other")])
    assert [head.flow for head in await other.list_heads(Query())] == ["other"]
    assert {head.flow for head in await store.list_heads(Query())} == {"flow"}
    assert await store.inspect() == []
    assert await other.inspect() == []
    await other.close()
    clear(shared_server(), f"{prefix}.b")
