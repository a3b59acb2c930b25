"""Whoever reads a run while others change it is told of what there was, or is, and never of damage that is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import CheckpointPolicy, Pipeline, Runtime
from holdfast.errors import RunNotFoundError, StoreDamagedError
from holdfast.model import Entry, Head
from holdfast.store.base import Store
from watched import WatchedStore

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


def grow(number: int, state: list[str]) -> list[str]:
    return [*state, f"{number}" * 3000]


flow = Pipeline("grow", grow, total=4)
kept_short = Pipeline("kept-short", grow, total=4, policy=CheckpointPolicy(keep_latest=1))


class Interrupted(WatchedStore):
    """Something else is done to the run between its head and its log."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def read_entries(self, run: str, **place: Any) -> list[Entry]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().read_entries(run, **place)


@pytest.fixture
async def both(make_runtime: MakeRuntime, make_store: MakeStore) -> AsyncIterator[tuple[Runtime, Interrupted, Runtime]]:
    """A reader, its store, and somebody else."""
    store = Interrupted(make_store())
    async with make_runtime(store) as reader, make_runtime() as other:
        for rt in (reader, other):
            rt.register(flow, kept_short)
        yield reader, store, other


async def test_a_run_that_is_deleted_meanwhile_is_not_there(both: tuple[Runtime, Interrupted, Runtime]) -> None:
    reader, store, other = both
    for read in (reader.load, reader.result):
        await other.run(flow, [], id="r1")
        store.meanwhile = lambda: other.delete("r1")
        if read == reader.load:
            assert await read("r1") is None
        else:
            with pytest.raises(RunNotFoundError):
                await read("r1")


async def test_the_result_is_that_of_when_it_was_asked_for_though_the_run_is_rewound_meanwhile(
    both: tuple[Runtime, Interrupted, Runtime],
) -> None:
    reader, store, other = both
    door = asyncio.Event()

    async def grow_behind_a_door(number: int, state: list[str]) -> list[str]:
        await door.wait()
        return grow(number, state)

    held = Pipeline("held", grow_behind_a_door, total=4)
    reader.register(held)
    door.set()
    expected = await other.run(held, [], id="r1")

    async def rewind() -> None:
        door.clear()  # so that it has not ended again when its log is read
        await other.rewind("r1@2")

    for read in (lambda: reader.result("r1"), lambda: reader.run(held, [], id="r1")):
        store.meanwhile = rewind
        assert await read() == expected
        door.set()
        await other.run(held, [], id="r1")


async def test_history_that_is_dropped_meanwhile_is_no_damage(both: tuple[Runtime, Interrupted, Runtime]) -> None:
    reader, store, other = both
    await other.run(kept_short, [], id="r1")
    before = await other.load("r1")
    assert before is not None

    async def rewind() -> None:
        for _ in range(3):
            await (await other.rewind("r1")).result()

    store.meanwhile = rewind
    found = await reader.load("r1")
    assert found is not None
    assert found.state == before.state


async def test_damage_is_told_as_such_though_the_run_goes_on_meanwhile(
    both: tuple[Runtime, Interrupted, Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, store, other = both
    await other.run(flow, [], id="r1")
    log, heads, looks = store.inner.read_entries, store.inner.read_heads, count()

    async def damaged(run: str, **place: Any) -> list[Entry]:
        return (await log(run, **place))[1:]

    async def moving(ids: Sequence[str]) -> list[Head | None]:
        return [head and replace(head, updated_at=head.updated_at + next(looks)) for head in await heads(ids)]

    monkeypatch.setattr(store.inner, "read_entries", damaged)
    monkeypatch.setattr(store.inner, "read_heads", moving)
    with pytest.raises(StoreDamagedError):
        await reader.load("r1")
