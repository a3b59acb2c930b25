"""The SQLite store passes the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.errors import UsageError
from holdfast.store.base import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock, StoreContract
from holdfast.testing.build import owner


class TestSqliteStore(StoreContract):
    capabilities = frozenset({"durable", "shared", "inline"})

    @pytest.fixture
    def make_store(self, tmp_path: Path, clock: ManualClock) -> Callable[[], Store]:
        return lambda: SqliteStore(tmp_path / "runs.db", clock=clock)


async def test_a_lease_begins_when_others_let_the_owner_write(tmp_path: Path, clock: ManualClock) -> None:
    store = SqliteStore(tmp_path / "runs.db", clock=clock)
    await store.open()
    another = apsw.Connection(str(tmp_path / "runs.db"))
    another.execute("begin immediate")
    beating = asyncio.ensure_future(asyncio.to_thread(store.beat, owner(), 15.0))
    while not store._beating:  # from there on it waits for the other one
        await asyncio.sleep(0)
    clock.advance(14)
    another.execute("rollback")
    await beating
    clock.advance(14)
    assert [one.alive for one in await store.list_owners()] == [True]
    another.close()
    await store.close()


@pytest.mark.parametrize("made", ["create table runs (id int)", "pragma user_version = 1"])
async def test_a_file_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path, made: str) -> None:
    path = tmp_path / "theirs.db"
    theirs = apsw.Connection(str(path))
    theirs.execute(made)
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"theirs\.db is a database of another program.*name another file"):
        await SqliteStore(path).open()
    assert path.read_bytes() == before
