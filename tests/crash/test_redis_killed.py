"""Redis is killed under load, again and again: with `appendfsync always` nothing that it acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast import Pipeline, Runtime, step
from holdfast.errors import HoldfastError, StoreUnavailableError
from holdfast.model import HeadChange, Mail, Posted, Query
from holdfast.store.redis import RedisStore
from holdfast.testing.build import commit, create
from servers.redis import RedisServer

CLIENTS = 4
RUNS = 8  # of each client
ROUNDS = 3
KILL_AFTER = 150  # acknowledged operations


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.remove()


class Client:
    """Writes to runs of its own until the server is gone, and knows what was acknowledged."""

    def __init__(self, number: int, url: str) -> None:
        self.owner = f"{number + 1:015x}"
        self.store = RedisStore(url)
        self.seqs: dict[str, int] = {f"c{number}-{n}": 0 for n in range(RUNS)}
        self.fences: dict[str, int] = dict.fromkeys(self.seqs, 0)
        self.mails: set[tuple[str, str]] = set()
        self.acknowledged = 0

    async def work(self, enough: asyncio.Event, total: list[int]) -> None:
        """Create, claim, commit, send, round and round."""
        while True:
            await self._take_up()
            for seq in range(3):
                await self._commit()
                key = f"{self.acknowledged}-{seq}"
                for run in self.seqs:
                    posted = await self.store.post_mail(run, Mail("answer", b"1", key))
                    if posted is Posted.ACCEPTED:
                        self.mails.add((run, key))
                    self._count(total, enough)

    async def _take_up(self) -> None:
        new = [create(run, owner=self.owner, fence=0) for run, seq in self.seqs.items() if seq == 0]
        for one, reply in zip(new, await self.store.commit(new), strict=True):
            assert reply.refused in (None, "exists")  # it may be there from a round whose reply was lost
            self.seqs[one.run] = 1
        for claim in await self.store.claim_runs(Query(ids=tuple(self.seqs)), self.owner):
            assert claim.head.fence > self.fences[claim.head.id]
            assert claim.head.seq >= self.seqs[claim.head.id]
            self.fences[claim.head.id], self.seqs[claim.head.id] = claim.head.fence, claim.head.seq

    async def _commit(self) -> None:
        change = HeadChange(wake_at=float(self.acknowledged))
        batch = [
            commit(run, seq + 1, seq + 2, owner=self.owner, fence=self.fences[run], change=change)
            for run, seq in self.seqs.items()
        ]
        for one, reply in zip(batch, await self.store.commit(batch), strict=True):
            assert reply.refused is None
            self.seqs[one.run] += 2

    def _count(self, total: list[int], enough: asyncio.Event) -> None:
        self.acknowledged += 1
        total[0] += 1
        if total[0] >= KILL_AFTER:
            enough.set()


async def test_nothing_acknowledged_is_lost_when_redis_is_killed_under_load(server: RedisServer) -> None:
    clients = [Client(number, server.url("load")) for number in range(CLIENTS)]
    for client in clients:
        await client.store.open()
    for _ in range(ROUNDS):
        enough, total = asyncio.Event(), [0]
        busy = [asyncio.ensure_future(client.work(enough, total)) for client in clients]
        await enough.wait()
        server.kill()  # in the middle of whatever the clients have asked for
        outcomes = await asyncio.gather(*busy, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailableError] * CLIENTS
        server.start()
        for client in clients:
            await everything_is_there(client)
    for client in clients:
        assert client.acknowledged > 0
        await client.store.close()


async def everything_is_there(client: Client) -> None:
    """All that was acknowledged to a client, without gaps, and its fences have not fallen."""
    heads = {head.id: head for head in await client.store.list_heads(Query(ids=tuple(client.seqs)))}
    sent: dict[str, set[str]] = {run: {key for its, key in client.mails if its == run} for run in client.seqs}
    for run, seq in client.seqs.items():
        if seq == 0:
            continue
        assert heads[run].seq >= seq
        assert heads[run].fence >= client.fences[run]
        entries = await client.store.read_entries(run)
        assert [entry.seq for entry in entries] == list(range(1, heads[run].seq + 1))
        for key in sent[run]:
            assert await client.store.post_mail(run, Mail("answer", b"1", key)) is Posted.DUPLICATE
    assert await client.store.inspect() == []


async def test_a_run_goes_on_where_it_was_when_redis_is_back(server: RedisServer) -> None:
    ran: list[str] = []

    @step
    async def first(state: dict[str, int]) -> dict[str, int]:
        ran.append("first")
        return state | {"first": 1}

    @step
    async def second(state: dict[str, int]) -> dict[str, int]:
        ran.append("second")
        if ran.count("second") == 1:
            server.kill()
        return state | {"second": 2}

    flow = Pipeline("two", [first, second])
    async with Runtime(server.url("engine")) as rt:
        with pytest.raises(HoldfastError):
            await rt.run(flow, {}, id="r1")
        server.start()
        with suppress(StoreUnavailableError):
            await rt.recover()
        assert await rt.run(flow, {}, id="r1") == {"first": 1, "second": 2}
    assert ran == ["first", "second", "second"]
