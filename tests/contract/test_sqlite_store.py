"""The SQLite store passes the contract."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast.errors import StoreUnavailableError, UsageError
from holdfast.store.base import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.connections import Connections
from holdfast.testing import ManualClock, StoreContract
from holdfast.testing.build import CAROL, commit, create, owner


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


async def test_a_step_is_never_acknowledged_into_a_transaction_that_failed_and_could_not_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot_open(*args: object) -> None:
        raise apsw.CantOpenError("unable to open database file")

    def cannot_hold(*args: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    store, other = SqliteStore(tmp_path / "runs.db"), SqliteStore(tmp_path / "runs.db")
    await store.open()
    await other.open()
    store.beat(owner(), 15.0)
    await store.commit([create("r1")])
    with monkeypatch.context() as without:
        without.setattr(Connections, "_connect", cannot_open)
        without.setattr(store._owners, "hold", cannot_hold)
        with pytest.raises(StoreUnavailableError, match="Too many open files"):
            store.try_commit([create("r2", owner=CAROL)], (owner(CAROL), 15.0))
        with pytest.raises(StoreUnavailableError, match="unable to open"):
            await other.read_heads(["r1"])
        replies = store.try_commit([commit("r1", 2)])
    assert replies is not None
    assert [reply.refused for reply in replies] == [None]
    assert [entry.seq for entry in await other.read_entries("r1")] == [1, 2]
    assert await other.read_heads(["r2"]) == [None]
    await store.close()
    await other.close()


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
