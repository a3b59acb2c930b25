"""The store in plain files passes the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.store.base import Store
from holdfast.store.files import FilesStore
from holdfast.testing import ManualClock, StoreContract


class TestFilesStore(StoreContract):
    capabilities = frozenset({"durable", "shared", "inline"})

    @pytest.fixture
    def make_store(self, tmp_path: Path, clock: ManualClock) -> Callable[[], Store]:
        return lambda: FilesStore(tmp_path / "runs", clock=clock)
