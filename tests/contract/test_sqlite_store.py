"""The SQLite store passes the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store.base import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock, StoreContract


class TestSqliteStore(StoreContract):
    capabilities = frozenset({"durable", "shared", "inline"})

    @pytest.fixture
    def make_store(self, tmp_path: Path, clock: ManualClock) -> Callable[[], Store]:
        return lambda: SqliteStore(tmp_path / "runs.db", clock=clock)
