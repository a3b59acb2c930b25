"""What every behaviour test gets: a clock that stands still, and runtimes on each kind of store."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.engine import waits
from holdfast.store.base import Store
from holdfast.store.files import FilesStore
from holdfast.store.locate import locate
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock
from servers import redis
from servers.postgres import PostgresServer, shared_server

MakeStore = Callable[[], Store]
MakeRuntime = Callable[..., Runtime]

IN_MEMORY = Path("/dev/shm")
ROOM = 2 * 1024**3


def pytest_configure() -> None:
    """Let temporary files lie in memory where there is room for them, and nobody has said where they are to lie.

    A process that is killed leaves there what it leaves on a disk. What a disk may lose is tested by simulated power
    cuts; `TMPDIR=/tmp make test` and `make torture` use the disk.
    """
    if "TMPDIR" not in os.environ and os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)


def pytest_collection_finish() -> None:
    """Spare every collection of garbage the look at thousands of tests, which are none."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _let_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that only waits is let go sooner than in earnest: most tests of waits begin when it has been."""
    monkeypatch.setattr(waits, "STILL_FOR", 0.02)


@pytest.fixture
def clock() -> ManualClock:
    """The time of the test: it passes by `advance` only."""
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "file"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> MakeStore:
    """A new store object on the same runs each time it is called, as another process would have it."""
    if request.param == "memory":
        one = MemoryStore(clock)
        return lambda: one
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "runs.db", clock=clock, durability="process")
    return lambda: FilesStore(tmp_path / "runs", clock=clock, durability="process")


@pytest.fixture
def make_runtime(make_store: MakeStore, clock: ManualClock) -> MakeRuntime:
    """A new Runtime on the same runs each time it is called; it takes all settings of Runtime."""

    def make(store: Any = None, **settings: Any) -> Runtime:
        return Runtime(store or make_store(), clock=clock, **settings)

    return make


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[PostgresServer]:
    """The PostgreSQL server of this test run."""
    folder = tmp_path_factory.getbasetemp()
    with shared_server(folder if worker_id == "master" else folder.parent) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_store(postgres: PostgresServer) -> Iterator[str]:
    """The name of a schema with the tables of a store, for all tests of this worker."""
    with postgres.schema() as name:
        asyncio.run(_make(postgres.url(name)))
        yield name


async def _make(url: str) -> None:
    store = locate(url)
    await store.open()
    await store.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_store: str) -> Iterator[str]:
    """The URL of a store with nothing in it."""
    yield postgres.url(postgres_store)
    postgres.clear(postgres_store)


@pytest.fixture
def postgres_schema(postgres: PostgresServer) -> Iterator[str]:
    """The name of a schema that is not there, for this test alone."""
    with postgres.schema() as name:
        yield name


@pytest.fixture
def redis_url() -> Iterator[str]:
    """The URL of a store in Redis with nothing in it."""
    server, prefix = redis.shared_server(), redis.new_prefix()
    yield server.url(prefix)
    redis.clear(server, prefix)
