"""The fixed-seed share of the torture of what steps do inside: calls, waits, children, streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import calls, commits
from .nursery import Nursery

SEED = 20240229


@pytest.mark.parametrize("name", calls.NAMES)
def test_each_effect_is_had_as_often_as_its_policy_promises(
    kind: str, name: str, tmp_path: Path, nursery: Nursery
) -> None:
    plan = calls.CallsPlan(name, SEED)
    figures = commits.torture(kind, plan, tmp_path, nursery, chosen=lambda number: number % 4 == 3)
    assert figures.kills >= 7
