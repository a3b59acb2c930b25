"""Which commits go to the store together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from holdfast.engine import committer
from holdfast.engine.committer import Committer
from holdfast.engine.introducing import Introducing
from holdfast.engine.ownership import Ownership
from holdfast.model import Commit, Reply
from holdfast.store.memory import MemoryStore
from holdfast.testing.build import commit, create, entry

MANY = 10
MOST = 1000


class Noting(MemoryStore):
    """Notes which runs each batch is for."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        self.batches.append([commit.run for commit in batch])
        return super().try_commit(batch)

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        return None


@pytest.fixture
async def store() -> AsyncIterator[Noting]:
    """A store with some runs in it."""
    store = Noting()
    await store.open()
    await store.commit([create(str(n)) for n in range(MANY)])
    store.batches.clear()
    yield store
    await store.close()


@pytest.fixture
async def writing(store: Noting, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Committer]:
    """A committer of several live runs that puts at most MOST bytes into a batch."""
    monkeypatch.setattr(committer, "_MOST_BYTES", MOST)
    ownership = Ownership(store, lease=60.0, heartbeat=60.0)
    await ownership.begin()
    yield Committer(Introducing(store, ownership), lambda: MANY)
    await ownership.end()


def step(run: int, size: int) -> Commit:
    return Commit(run=str(run), owner=commit("").owner, fence=1, entries=(entry(2, body=b"x" * size),))


async def written(writing: Committer, *commits: Commit) -> list[Any]:
    """What becomes of commits that are ready at the same moment."""
    return await asyncio.gather(*map(writing.commit, commits), return_exceptions=True)


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([100] * 10, ["0123456789"]),
        ([400] * 5, ["01", "23", "4"]),
        ([500, 500, 1], ["01", "2"]),
        ([1, MOST * 2, 1, 1], ["0", "1", "23"]),
        ([MOST * 2], ["0"]),
    ],
    ids=["small ones", "large ones", "up to the last byte", "one beyond all measure", "that one alone"],
)
async def test_a_batch_has_no_more_bytes_than_a_server_takes_but_always_one_commit(
    writing: Committer, store: Noting, sizes: list[int], batches: list[str]
) -> None:
    replies = await written(writing, *(step(run, size) for run, size in enumerate(sizes)))
    assert [reply.refused for reply in replies] == [None] * len(sizes)
    assert ["".join(runs) for runs in store.batches] == batches


async def test_a_snapshot_in_the_place_of_history_counts_as_what_it_is(writing: Committer, store: Noting) -> None:
    snapshot = entry(1, body=b"x" * MOST)
    whole = [Commit(run=str(run), owner=commit("").owner, fence=1, rebase=snapshot) for run in range(2)]
    assert [reply.refused for reply in await written(writing, *whole)] == [None, None]
    assert store.batches == [["0"], ["1"]]


async def test_a_store_that_refuses_to_begin_leaves_nobody_of_the_next_batches_waiting(
    writing: Committer, store: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(batch: Sequence[Commit]) -> Any:
        raise OSError("no")

    monkeypatch.setattr(store, "commit", refuse)
    async with asyncio.timeout(20):
        outcomes = await written(writing, *(step(run, MOST) for run in range(3)))
        await writing.drain()
    assert [str(error) for error in outcomes] == ["no"] * 3
