"""Redis itself drops the history of an ended run when it expires; what stays says that there was one."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import redis

from holdfast import CheckpointPolicy, Pipeline, Runtime, ask, flow
from holdfast.engine.doctor import examine
from holdfast.errors import ResultExpiredError, RunWaitingError, StoreDamagedError
from holdfast.model import HeadChange, Query
from holdfast.store.redis import RedisStore
from holdfast.testing import ManualClock
from holdfast.testing.build import ALICE, BOB, commit, create
from servers.redis import clear, new_prefix, shared_server

HOUR = 3600.0


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
    store = RedisStore(shared_server().url(prefix))
    await store.open()
    yield store
    await store.close()


class Counting:
    """A pipeline whose history stays for an hour, and how often its step ran."""

    def __init__(self) -> None:
        self.ran = 0
        self.broken = False
        self.flow = Pipeline("counting", self._advance, total=3, policy=CheckpointPolicy(ttl=HOUR))

    async def _advance(self, step: int, state: dict[str, int]) -> dict[str, int]:
        self.ran += 1
        if self.broken:
            raise ValueError("no")
        return {"n": state.get("n", 0) + 1}


def long_ago() -> ManualClock:
    """A clock by which whatever lives for an hour has expired on the server's."""
    return ManualClock(time.time() - 2 * HOUR)


async def ended(rt: Runtime, counting: Counting) -> None:
    """Let the run r1 come to its end."""
    handle = await rt.start(counting.flow, {}, id="r1")
    with suppress(ResultExpiredError):
        await handle.result()


async def test_the_log_of_an_ended_run_is_gone_when_it_expires_and_nothing_runs_again(
    prefix: str, client: redis.Redis
) -> None:
    counting = Counting()
    async with Runtime(shared_server().url(prefix), clock=long_ago()) as rt:
        await ended(rt, counting)
    assert client.exists(f"{prefix}:log:r1") == 0
    async with Runtime(shared_server().url(prefix), clock=long_ago()) as rt:
        rt.register(counting.flow)
        for _ in range(2):
            with pytest.raises(ResultExpiredError):
                await rt.run(counting.flow, {}, id="r1")
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.step) == ("completed", 3)
        assert [event.type async for event in rt.events("r1")] == ["completed"]
    assert counting.ran == 3


async def test_an_expired_run_is_no_damage_and_pruning_it_settles_the_matter(
    prefix: str, client: redis.Redis, store: RedisStore
) -> None:
    counting = Counting()
    async with Runtime(shared_server().url(prefix), clock=long_ago()) as rt:
        await ended(rt, counting)
    assert [problem async for problem in examine(store)] == []
    async with Runtime(shared_server().url(prefix)) as rt:  # prunes when it opens
        with pytest.raises(ResultExpiredError):
            await rt.run(counting.flow, {}, id="r1")
    assert client.pttl(f"{prefix}:log:r1") == -1
    assert len(await store.read_entries("r1")) == 1
    (head,) = await store.list_heads(Query())
    assert head.expires_at is None
    assert [problem async for problem in examine(store)] == []


async def test_a_log_expires_when_its_run_does_and_not_before(prefix: str, client: redis.Redis) -> None:
    counting = Counting()
    async with Runtime(shared_server().url(prefix)) as rt:
        assert await rt.run(counting.flow, {}, id="r1") == {"n": 3}
        assert await rt.run(counting.flow, {}, id="r1") == {"n": 3}
    store = RedisStore(shared_server().url(prefix))
    await store.open()
    (head,) = await store.list_heads(Query())
    await store.close()
    assert head.expires_at is not None
    left = client.pttl(f"{prefix}:log:r1")
    assert left > 0
    assert left <= math.ceil((head.expires_at - time.time()) * 1000) + 5000
    assert client.pttl(f"{prefix}:head:r1") == -1


async def test_an_unfinished_run_never_loses_its_log(prefix: str, client: redis.Redis) -> None:
    @flow(policy=CheckpointPolicy(ttl=HOUR))
    async def asking() -> str:
        answer: str = await ask("may I?", schema=str)
        return answer

    async with Runtime(shared_server().url(prefix), clock=long_ago()) as rt:
        rt.register(asking)
        with pytest.raises(RunWaitingError):
            await rt.run(asking, id="r1", until="settled")
        assert client.pttl(f"{prefix}:log:r1") == -1
        assert client.zcard(f"{prefix}:expiring") == 1
        await rt.prune()
        await rt.answer("r1", "yes")
        with suppress(ResultExpiredError):
            assert await rt.run(asking, id="r1") == "yes"
        run = await rt.get("r1")
        assert run is not None
        assert run.status == "completed"


async def test_who_takes_an_ended_run_up_keeps_its_log_and_who_gives_it_up_lets_it_go(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    soon = time.time() + HOUR
    end = HeadChange(status="failed", owner=None, expires_at=soon)
    await store.commit([create("run"), commit("run", 2, change=end)])
    assert client.pttl(f"{prefix}:log:run") > 0
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    assert [entry.seq for entry in claim.entries] == [1, 2]
    assert client.pttl(f"{prefix}:log:run") == -1
    await store.commit([commit("run", owner=BOB, fence=2, change=HeadChange(owner=None))])
    assert client.pttl(f"{prefix}:log:run") > 0
    assert await store.inspect() == []


async def test_an_ended_run_that_somebody_has_keeps_its_log(store: RedisStore) -> None:
    end = HeadChange(status="failed", expires_at=time.time() - 1)
    replies = await store.commit([create("run"), commit("run", 2, change=end), commit("run", 3)])
    assert [reply.refused for reply in replies] == [None, None, None]
    assert [entry.seq for entry in await store.read_entries("run")] == [1, 2, 3]


async def test_an_expired_run_can_be_claimed_with_what_is_left_and_goes_on_from_there(store: RedisStore) -> None:
    end = HeadChange(status="failed", owner=None, expires_at=time.time() - 1)
    await store.commit([create("run"), commit("run", 2, 3, change=end)])
    assert [entry.seq for entry in await store.read_entries("run")] == [3]
    assert await store.read_entries("run", upto=2) == []
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    assert [entry.seq for entry in claim.entries] == [3]
    replies = await store.commit(
        [
            commit("run", 3, owner=BOB, fence=2),
            commit("run", 4, owner=BOB, fence=2, change=HeadChange(status="running", expires_at=None)),
            commit("run", 4, owner=ALICE),
        ]
    )
    assert [reply.refused for reply in replies] == ["gap", None, "stale"]
    assert [entry.seq for entry in await store.read_entries("run")] == [3, 4]
    assert await store.inspect() == []


async def test_a_log_that_vanished_before_its_time_is_damage(
    store: RedisStore, client: redis.Redis, prefix: str
) -> None:
    end = HeadChange(status="completed", owner=None, expires_at=time.time() + HOUR)
    await store.commit([create("run"), commit("run", 2, change=end)])
    client.delete(f"{prefix}:log:run")  # as `maxmemory-policy volatile-lru` does
    with pytest.raises(StoreDamagedError, match="entries of its log are missing"):
        await store.read_entries("run")
    assert [run for run, _ in await store.inspect()] == ["run"]


@pytest.mark.parametrize("expires_at", [0.0, -5.0, 0.1, 253402300799.0, 1e300, 1e-300])
async def test_any_time_can_be_the_one_at_which_a_run_expires(store: RedisStore, expires_at: float) -> None:
    end = HeadChange(status="completed", owner=None, expires_at=expires_at)
    replies = await store.commit([create("run"), commit("run", 2, change=end)])
    assert [reply.refused for reply in replies] == [None, None]
    (head,) = await store.list_heads(Query())
    assert head.expires_at == expires_at
    assert [entry.seq for entry in await store.read_entries("run")][-1] == 2
    assert await store.inspect() == []
