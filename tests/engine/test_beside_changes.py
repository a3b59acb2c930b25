"""Whoever reads a run while others change it is told of what there was, or is, and never of damage that is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Ask, CheckpointPolicy, Pipeline, Runtime, ask, call
from holdfast import flow as function
from holdfast.engine import reader as reading
from holdfast.errors import NotACheckpointError, RunInterruptedError, RunNotFoundError, StoreDamagedError
from holdfast.model import Claim, Entry, Head, Query
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from waiting import until_status
from watched import WatchedStore

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


def grow(number: int, state: list[str]) -> list[str]:
    return [*state, f"{number}" * 3000]


flow = Pipeline("grow", grow, total=4)
kept_short = Pipeline("kept-short", grow, total=4, policy=CheckpointPolicy(keep_latest=1))


@function
async def asking() -> Any:
    return await ask("Go on?")


@function
async def calling() -> Any:
    return await call(len, "four")


class Interrupted(WatchedStore):
    """Something else is done to the run between its head and its log, or before it is claimed."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None
    before_claim: Callable[[], Awaitable[Any]] | None = None
    reads_before = 0
    """How many looks at the log come before `meanwhile`."""

    async def read_entries(self, run: str, **place: Any) -> list[Entry]:
        self.reads_before -= 1
        if self.reads_before < 0:
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                await meanwhile()
        return await super().read_entries(run, **place)

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        before_claim, self.before_claim = self.before_claim, None
        if before_claim is not None:
            await before_claim()
        return await super().claim_runs(query, owner)


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


async def test_the_result_of_a_run_is_not_sought_in_another_one_that_has_its_id_now(
    both: tuple[Runtime, Interrupted, Runtime],
) -> None:
    reader, store, other = both
    await other.run(flow, [], id="r1")

    async def use_again() -> None:
        await other.delete("r1")
        await other.start(asking, id="r1")
        await until_status(other, "r1", "waiting")

    store.meanwhile = use_again
    with pytest.raises(RunNotFoundError):
        await reader.result("r1")


async def test_a_result_that_was_dropped_after_a_rewind_is_no_damage(
    both: tuple[Runtime, Interrupted, Runtime],
) -> None:
    reader, store, other = both
    door = asyncio.Event()

    async def grow_up_to_a_door(number: int, state: list[str]) -> list[str]:
        if number == 3:
            await door.wait()
        return grow(number, state)

    held = Pipeline("held", grow_up_to_a_door, total=4, policy=CheckpointPolicy(keep_latest=2))
    reader.register(held)
    door.set()
    await other.run(held, [], id="r1")

    async def rewind() -> None:
        for again in (*[True] * 8, False):
            first, *_ = [checkpoint.seq async for checkpoint in other.checkpoints("r1")]
            if not again:
                door.clear()  # so that it has not ended again when its log is read
            handle = await other.rewind(f"r1@{first}")
            if again:
                await handle.result()

    store.meanwhile = rewind
    with pytest.raises(RunInterruptedError, match="rewound"):
        await reader.result("r1")


async def test_a_call_that_is_dropped_while_a_rewind_looks_for_it_is_not_there(
    both: tuple[Runtime, Interrupted, Runtime],
) -> None:
    reader, store, other = both
    await other.run(calling, id="r1")
    (call_at,) = [line.seq async for line in other.ledger("r1")]
    reader.register(calling)
    # It is looked at to see that it is no checkpoint, then for the nearest one, then as a call.
    store.meanwhile, store.reads_before = lambda: other.delete("r1"), 2
    with pytest.raises(NotACheckpointError):
        await reader.rewind(f"r1@{call_at}")


async def test_what_a_run_asks_is_not_asked_any_more_when_it_is_deleted_meanwhile(
    both: tuple[Runtime, Interrupted, Runtime],
) -> None:
    reader, store, other = both

    async def all_of(questions: AsyncIterator[Ask]) -> list[Ask]:
        return [question async for question in questions]

    def wants_its_child() -> Awaitable[bool]:
        return reader._now().mailing.wants_its_child(head)

    reads: list[tuple[Callable[[], Awaitable[Any]], Any]] = [
        (lambda: all_of(reader.asks()), []),
        (wants_its_child, False),
        (lambda: all_of(reader.asks("r1")), None),
        (lambda: reader.answer("r1", "yes"), None),
    ]
    for read, found in reads:
        await other.start(asking, id="r1")
        await until_status(other, "r1", "waiting")
        (head,) = await store.list_heads(Query(ids=("r1",)))
        store.meanwhile = lambda: other.delete("r1")
        if found is not None:
            assert await read() == found
        else:
            with pytest.raises(RunNotFoundError):
                await read()


async def test_whoever_lists_checkpoints_is_not_told_of_damage_where_some_are_dropped_meanwhile(
    both: tuple[Runtime, Interrupted, Runtime],
    make_runtime: MakeRuntime,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, _, other = both
    monkeypatch.setattr(reading, "_PAGE", 2)
    inside = asyncio.Event()

    async def grow_and_stop(number: int, state: list[str]) -> list[str]:
        if number == 6:
            inside.set()
            await asyncio.Event().wait()
        return grow(number, state)

    async with make_runtime(grace=0.0) as rt:
        await rt.start(Pipeline("stops", grow_and_stop, total=7, policy=CheckpointPolicy(ttl=60)), [], id="r1")
        await inside.wait()
    seen: list[int] = []
    async for checkpoint in reader.checkpoints("r1"):
        seen.append(checkpoint.seq)
        if len(seen) == 1:
            clock.advance(61)
            assert await other.prune() == 1
    assert seen == [1, 2, 7]  # the second one was in hand already


async def test_checkpoints_that_are_damaged_are_told_so_however_often_they_are_read(
    both: tuple[Runtime, Interrupted, Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, store, other = both
    await other.run(flow, [], id="r1")
    log = store.inner.read_entries

    async def without_the_third(run: str, **place: Any) -> list[Entry]:
        return [entry for entry in await log(run, **place) if entry.seq != 3]

    monkeypatch.setattr(store.inner, "read_entries", without_the_third)
    listed = reader.checkpoints("r1")
    assert [(await anext(listed)).seq for _ in range(2)] == [1, 2]
    with pytest.raises(StoreDamagedError, match="r1@3 is damaged: the entry is missing"):
        await anext(listed)


async def test_whoever_follows_a_run_is_told_when_another_one_has_its_id(
    both: tuple[Runtime, Interrupted, Runtime],
) -> None:
    reader, _, other = both
    await other.start(asking, id="r1")
    following = reader.events("r1", follow=True)
    async with asyncio.timeout(20):
        async for event in following:
            if event.type == "waiting":
                break
        await other.delete("r1")
        await other.start(asking, id="r1")
        await until_status(other, "r1", "waiting")
        with pytest.raises(RunNotFoundError):
            await anext(following)


async def test_a_run_that_ended_anew_while_others_were_pruned_keeps_its_result(
    both: tuple[Runtime, Interrupted, Runtime], clock: ManualClock
) -> None:
    reader, store, other = both
    expiring = Pipeline("expiring", grow, total=4, policy=CheckpointPolicy(ttl=60))
    for rt in (reader, other):
        rt.register(expiring)
    expected = [await other.run(expiring, [], id=run) for run in ("r1", "r2")]
    clock.advance(61)

    async def rewind() -> None:
        await (await other.rewind("r1@3")).result()

    store.before_claim = rewind
    assert await reader.prune() == 1
    assert await reader.result("r1") == expected[0]
    assert await reader.load("r2") is None
