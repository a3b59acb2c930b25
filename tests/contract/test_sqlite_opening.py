"""Many may open a SQLite store that is not there yet, or is being made: all of them get it."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.store.sqlite import SqliteStore, connections, schema


def open_and_close(path: Path) -> str:
    store = SqliteStore(path)
    store._open().close()
    return "opened"


@pytest.mark.parametrize("before", range(5))
def test_a_file_that_somebody_makes_in_the_midst_of_a_look_is_not_taken_for_another_programs(
    tmp_path: Path, before: int
) -> None:
    looking = apsw.Connection(str(tmp_path / "runs.db"))
    looking.pragma("journal_mode", "wal")
    begun: list[str] = []

    def make(event: dict[str, str]) -> None:
        if len(begun) == before:
            maker = threading.Thread(target=open_and_close, args=(tmp_path / "runs.db",))
            maker.start()
            maker.join()
        begun.append(event["sql"])

    looking.trace_v2(apsw.SQLITE_TRACE_STMT, make)
    assert schema.version(looking) in (0, len(schema.MIGRATIONS))
    looking.trace_v2(0, None)
    assert schema.version(looking) == (len(schema.MIGRATIONS) if before < len(begun) else 0)


@pytest.fixture
def other(tmp_path: Path) -> apsw.Connection:
    """Somebody is about to write to the file, which has no log yet: SQLite does not wait for that by itself."""
    connection = apsw.Connection(str(tmp_path / "runs.db"))
    connection.execute("begin immediate")
    return connection


def test_who_opens_a_file_while_another_makes_it_waits(
    tmp_path: Path, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def the_other_is_done(seconds: float) -> None:
        waits.append(seconds)
        other.execute("rollback")

    monkeypatch.setattr(connections.time, "sleep", the_other_is_done)
    assert open_and_close(tmp_path / "runs.db") == "opened"
    assert len(waits) == 1


def test_but_not_for_ever(tmp_path: Path, other: apsw.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BUSY_MS", 0)
    with pytest.raises(StoreUnavailableError, match="locked"):
        open_and_close(tmp_path / "runs.db")
    assert other.in_transaction


def test_all_of_many_who_open_a_new_store_at_once_get_it(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.db" for number in range(10) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads, ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        opened = [pool.map(open_and_close, paths) for pool in (threads, processes)]
        assert {one for each in opened for one in each} == {"opened"}
