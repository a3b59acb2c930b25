"""A user's own store on a plain task table passes the contract, and the example runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.store.base import Store
from holdfast.testing import ManualClock, StoreContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_store.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_store", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_store"] = module
    spec.loader.exec_module(module)
    return module


own_store = load_example()


class TestOwnStore(StoreContract):
    capabilities = frozenset({"durable"})

    @pytest.fixture
    def make_store(self, clock: ManualClock) -> Callable[[], Store]:
        table = own_store.DictTable()
        return lambda: own_store.TaskStore(table, clock)


def test_the_example_runs() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    assert "tides rise; tides fall" in done.stdout
    assert "task r1: completed, 100 %" in done.stdout
