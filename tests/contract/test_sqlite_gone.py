"""A SQLite file that is removed or replaced while it is open: no more is acknowledged into one without a name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from holdfast import Pipeline, Runtime
from holdfast.errors import StoreUnavailableError
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.connections import Connections
from holdfast.store.sqlite.wal import GROW_AT_COMMITS
from holdfast.testing.build import create, owner

GONE = "was removed or replaced while it was open.*Put it back"


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace(path: Path) -> None:
    move(path)
    path.write_bytes(path.with_name("elsewhere.db").read_bytes())


@pytest.mark.parametrize("lose", [move, replace])
async def test_from_the_next_heartbeat_on_it_is_refused_until_the_file_is_back(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.open()
    store.beat(owner(), 15.0)
    await store.commit([create("r1")])
    lose(path)
    with pytest.raises(StoreUnavailableError, match=GONE):
        store.beat(owner(), 15.0)
    with pytest.raises(StoreUnavailableError, match=GONE):
        await store.commit([create("r2")])
    with pytest.raises(StoreUnavailableError, match=GONE):
        store.try_commit([create("r2")])
    with pytest.raises(StoreUnavailableError, match=GONE):
        await store.read_heads(["r1"])
    path.with_name("elsewhere.db").replace(path)
    store.beat(owner(), 15.0)
    await store.commit([create("r2")])
    assert None not in await store.read_heads(["r1", "r2"])
    await store.close()


@pytest.mark.parametrize("lose", [Path.unlink, replace])
async def test_the_first_run_of_an_owner_is_refused_at_once(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.open()
    lose(path)
    with pytest.raises(StoreUnavailableError, match=GONE):
        store.try_commit([create("r1")], (owner(), 15.0))
    await store.close()


@pytest.mark.parametrize("lose", [Path.unlink, replace])
async def test_a_run_is_not_said_to_be_started_in_a_file_without_a_name(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    path = tmp_path / "runs.db"
    async with Runtime(f"sqlite:{path}") as rt:
        assert await rt.get("r1") is None
        lose(path)
        with pytest.raises(StoreUnavailableError, match=GONE):
            await rt.start(Pipeline("losing", [abs]), 1, id="r1")


async def test_a_connection_that_is_opened_late_does_not_read_another_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    replace(tmp_path / "runs.db")
    with pytest.raises(StoreUnavailableError, match=GONE):
        await store.read_heads(["r1"])
    await store.close()


@pytest.mark.parametrize("lose", [Path.unlink, replace])
async def test_the_upkeep_of_the_log_leaves_it_to_the_writer_to_say_so(
    tmp_path: Path, lose: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, tried = SqliteStore(tmp_path / "runs.db"), threading.Event()
    await made.open()
    await made.close()
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    lose(tmp_path / "runs.db")
    connect = Connections._connect

    def told(self: Connections) -> apsw.Connection:
        try:
            return connect(self)
        finally:
            tried.set()

    monkeypatch.setattr(Connections, "_connect", told)
    keeper = store._db()._wal
    assert keeper is not None
    keeper._connect = store._db()._connect
    for number in range(GROW_AT_COMMITS):  # then the thread begins, and would end with an error that nobody catches
        await store.commit([create(f"r{number}")])
    assert await asyncio.to_thread(tried.wait, 20)
    await store.close()


async def test_whoever_signs_off_before_a_heartbeat_is_told(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    store.beat(owner(), 15.0)
    (tmp_path / "runs.db").unlink()
    with pytest.raises(StoreUnavailableError, match=GONE):
        await store.retire_owner(owner().id)
    await store.close()


async def test_a_run_whose_file_is_removed_fails_to_be_saved_and_is_not_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"

    async def remove(state: int) -> None:
        path.unlink()
        async with asyncio.timeout(20):
            while "was removed or replaced" not in caplog.text:
                await asyncio.sleep(0.001)

    with pytest.raises(StoreUnavailableError, match=GONE):
        async with Runtime(f"sqlite:{path}", heartbeat=0.01) as rt:
            await rt.run(Pipeline("losing", [remove, abs]), 1)
