"""Long bodies are laid out so that the pages of the SQLite store are full, and are read as they were written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.model import Commit, Entry, HeadChange, Refusal
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.build import commit, create, entry

SEVERAL = [420, 1300, 640, 2100, 90, 5000, 730]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "runs.db", durability="process")
    await opened.open()
    yield opened
    await opened.close()


def long(seq: int, length: int, letter: str = "x") -> Entry:
    text = (letter * length).encode()[:length].decode(errors="ignore")
    return entry(seq, body=f'{{"text":"{text}"}}'.encode())


def of(run: str, *entries: Entry, **fields: Any) -> Commit:
    return commit(run, entries=entries, **fields)


async def write(store: SqliteStore, lengths: Sequence[int], run: str = "run", letter: str = "x") -> list[Entry]:
    """A run with entries of these lengths, each in a commit of its own."""
    first = create(run)
    written = [*first.entries, *(long(seq, length, letter) for seq, length in enumerate(lengths, 2))]
    for one in (first, *(of(run, each) for each in written[1:])):
        assert [reply.refused for reply in await store.commit([one])] == [None]
    return written


def ask(store: SqliteStore, question: str) -> Any:
    return apsw.Connection(str(store.path)).execute(question).get


def beginnings(store: SqliteStore) -> int:
    return int(ask(store, "select count(*) from entries where id is null"))


def rows(store: SqliteStore) -> int:
    return int(ask(store, "select count(*) from entries"))


@pytest.mark.parametrize("lengths", [[450], [580], [800], [925], [1450], [1940], [580, 1600], SEVERAL], ids=str)
async def test_the_pages_of_the_log_are_full_whatever_the_length_of_its_entries(
    store: SqliteStore, lengths: list[int]
) -> None:
    written = await write(store, [*lengths * (400 // len(lengths))])
    size = sum(len(each.body) + len(each.cursor) + len(each.check) + len(each.kind) for each in written)
    taken, unused = ask(store, "select sum(pgsize), sum(unused) from dbstat where name = 'entries'")
    assert unused < 0.06 * taken
    assert taken < 1.08 * size + 60 * len(written)


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u20ac", "\U0001f40c"])
async def test_what_is_laid_out_as_two_rows_is_read_as_it_was_written(store: SqliteStore, letter: str) -> None:
    written = await write(store, SEVERAL * 10, letter=letter)
    assert beginnings(store) > 10
    assert await store.read_entries("run") == written
    assert await store.read_entries("run", after=7, upto=40, limit=9) == written[7:16]


async def test_commits_that_go_together_are_read_as_they_were_written(store: SqliteStore) -> None:
    runs = [f"run-{n}" for n in range(20)]
    await store.commit([create(run) for run in runs])
    for seq in range(2, 20, 2):
        batch = [of(run, long(seq, 300 * place), long(seq + 1, 1000)) for place, run in enumerate(runs)]
        assert {reply.refused for reply in await store.commit(batch)} == {None}
    assert beginnings(store) > 50
    for place, run in enumerate(runs):
        expected = [long(seq, 1000 if seq % 2 else 300 * place) for seq in range(2, 20)]
        assert await store.read_entries(run, after=1) == expected


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("seq", "fields", "refused"),
    [(5, {}, Refusal.GAP), (13, {}, Refusal.GAP), (12, {"fence": 2}, Refusal.STALE)],
    ids=["taken", "too far", "stale"],
)
async def test_neither_row_of_what_is_refused_is_written(
    store: SqliteStore, seq: int, fields: dict[str, Any], refused: Refusal, together: bool
) -> None:
    written = await write(store, [700] * 10)
    beside = [*create("other").entries, *(long(number, 90) for number in range(2, 5))]
    for each in beside:  # whatever is left of a page
        one = create("other") if each.seq == 1 else of("other", each)
        replies = await store.commit([*([one] if together else []), of("run", long(seq, 650), **fields)])
        assert replies[-1].refused == refused
    # A row that had gone in without the other would be taken for the beginning of what came next.
    assert await store.read_entries("run") == written
    assert await store.read_entries("other") == (beside if together else [])
    assert await store.inspect() == []


async def test_a_beginning_goes_with_its_entry(store: SqliteStore) -> None:
    written = await write(store, [700] * 20)
    await write(store, [700] * 20, run="other")
    kept = int(ask(store, "select max(id & 4294967295) from entries where id >> 32 = 1 and begun"))
    whole = long(kept, 60)
    change = HeadChange(floor=kept)
    assert (await store.commit([of("run", rebase=whole, change=change)]))[0].refused is None
    assert await store.read_entries("run") == [whole, *written[kept:]]
    assert await store.inspect() == []
    assert ask(store, "select count(*) from entries where begun") == beginnings(store) > 0
    await store.commit([of("run", change=HeadChange(owner=None)), of("other", change=HeadChange(owner=None))])
    assert await store.delete_run("run")
    assert await store.delete_run("other")
    assert rows(store) == 0


async def test_several_that_write_in_turn_read_the_same(store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore(tmp_path / "runs.db", durability="process")
    await other.open()
    await store.commit([create()])
    written = [long(seq, length) for seq, length in enumerate(SEVERAL * 12, 2)]
    for each in written:
        await (other if each.seq % 3 else store).commit([of("run", each)])
    assert beginnings(store) > 5
    assert await other.read_entries("run", after=1) == await store.read_entries("run", after=1) == written
    await other.close()


async def test_pages_are_full_again_after_another_has_written(store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore(tmp_path / "runs.db", durability="process")
    await other.open()
    await write(store, [800] * 20)
    await write(other, [300], run="other")
    for seq in range(22, 422):
        await store.commit([of("run", long(seq, 800))])
    taken, unused = ask(store, "select sum(pgsize), sum(unused) from dbstat where name = 'entries'")
    assert unused < 0.1 * taken
    await other.close()


async def test_a_beginning_without_its_entry_is_found(store: SqliteStore) -> None:
    await write(store, [700] * 20)
    last = ask(store, "select max(place) from entries where id is null")
    apsw.Connection(str(store.path)).execute("delete from entries where place = ?", (last + 1,))
    assert [problem for _, problem in await store.inspect()] == ["1 entries belong to no run"]
