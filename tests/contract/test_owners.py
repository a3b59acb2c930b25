"""The locks that tell who is dead, when others look at them at the same moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.errors import StoreUnavailableError
from holdfast.store import owners
from holdfast.store.base import Store
from holdfast.store.files import FilesStore
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.build import ALICE, owner

LOOKING = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_SH, 1, int(sys.argv[2], 16))
print("looking", flush=True)
sys.stdin.readline()
"""


@pytest_asyncio.fixture(params=["files", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store whose owner was alive, and is not any more."""
    store = FilesStore(tmp_path / "runs") if request.param == "files" else SqliteStore(tmp_path / "runs.db")
    await store.open()
    store.beat(owner(ALICE), 15.0)
    await store.close()
    await store.open()
    yield store
    await store.close()


@contextmanager
def looking(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """While another process looks whether the owner is dead."""
    (file,) = [*tmp_path.glob("runs/.owners.lock"), *tmp_path.glob("runs.db-owners")]
    command = [sys.executable, "-c", LOOKING, str(file), ALICE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "looking\n"
    try:
        yield process
    finally:
        if process.poll() is None:
            process.communicate("\n")


async def test_a_beat_comes_through_when_somebody_looks_at_that_moment(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with looking(tmp_path) as process:
        monkeypatch.setattr(owners.time, "sleep", lambda _: process.communicate("\n"))
        store.beat(owner(ALICE), 15.0)
        assert process.poll() == 0  # it did look until then
    assert [one.alive for one in await store.list_owners()] == [True]


async def test_a_beat_that_does_not_come_through_is_an_error_of_the_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_PATIENCE", 0.01)
    with looking(tmp_path), pytest.raises(StoreUnavailableError, match=ALICE):
        store.beat(owner(ALICE), 15.0)
    store.beat(owner(ALICE), 15.0)
    assert [one.alive for one in await store.list_owners()] == [True]
