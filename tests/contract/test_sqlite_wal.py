"""The write-ahead log has room before it is needed, however much lies in it already."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Pipeline, Runtime
from holdfast.store.sqlite import wal

GROWTH = (wal.GROW_PAGES - wal.AHEAD_PAGES) * wal.FRAME_BYTES


async def sizes_of_log(place: Path, *, steps: int, input: str, wait_at: int | None = None) -> list[int]:
    """The bytes of the log in each step, which makes a short commit; at one of them wait until it has grown."""
    sizes: list[int] = []

    def size() -> int:
        return place.with_name("runs.db-wal").stat().st_size

    async def advance(index: int, state: str) -> str:
        if index == wait_at:
            async with asyncio.timeout(20):
                while size() < sizes[0] + GROWTH:
                    await asyncio.sleep(0.001)
        sizes.append(size())
        return state

    async with Runtime(f"sqlite:{place}") as rt:
        await rt.run(Pipeline("short steps", advance, total=steps), input)
    return sizes


async def made_before(place: Path) -> Path:
    """A store that nobody uses now, and that has no log any more."""
    async with Runtime(f"sqlite:{place}"):
        pass
    assert not place.with_name("runs.db-wal").exists()
    return place


async def test_a_new_store_has_room_before_its_first_commit(tmp_path: Path) -> None:
    sizes = await sizes_of_log(tmp_path / "runs.db", steps=60, input="")
    assert min(sizes) >= GROWTH
    assert len(set(sizes)) == 1


@pytest.mark.parametrize("first", [10, 3_000_000], ids=["an empty log", "a long log"])
async def test_after_a_few_commits_the_next_ones_make_the_log_no_longer(tmp_path: Path, first: int) -> None:
    few = wal.GROW_AT_COMMITS + 2
    place = await made_before(tmp_path / "runs.db")
    sizes = await sizes_of_log(place, steps=60, input="x" * first, wait_at=few)
    assert sizes[0] >= first
    assert len(set(sizes[few + 1 :])) == 1  # it grows under the lock of the commit in between


async def test_room_is_made_again_before_it_is_used_up(tmp_path: Path) -> None:
    """Each step waits until there is room for more commits than it can make: none of them makes the log longer."""
    place = tmp_path / "runs.db"
    ends: list[int] = []

    def room(log: bytes) -> int:
        return len(log) - len(log.rstrip(b"\0"))

    async def advance(index: int, state: str) -> str:
        log = place.with_name("runs.db-wal")
        if index >= wal.GROW_AT_COMMITS:
            async with asyncio.timeout(20):
                while room(log.read_bytes()) < wal.AHEAD_PAGES * wal.FRAME_BYTES // 2:
                    await asyncio.sleep(0.001)
            ends.append(log.stat().st_size)
        written.append(str(index).zfill(10_000))
        return written[-1]

    written: list[str] = []
    async with Runtime(f"sqlite:{place}") as rt:
        await rt.run(Pipeline("long steps", advance, total=200), "")
    assert len(written) == 200
    assert 2 <= len(set(ends)) <= 10  # five times in all, and each of them may be seen half done


async def test_a_short_run_in_a_store_that_was_there_does_not_pay_for_room(tmp_path: Path) -> None:
    place = await made_before(tmp_path / "runs.db")
    sizes = await sizes_of_log(place, steps=wal.GROW_AT_COMMITS - 4, input="")
    assert max(sizes) < GROWTH
