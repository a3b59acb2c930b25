"""The fixed-seed share of the torture of teams, graphs and agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import commits, inside, shaped, waiting
from .nursery import Nursery

SEED = 20240229


@pytest.mark.parametrize("name", shaped.NAMES)
def test_a_shape_that_is_killed_comes_to_the_same_by_the_same_way(
    kind: str, name: str, tmp_path: Path, nursery: Nursery
) -> None:
    plan = shaped.ShapePlan(name, SEED)
    figures = commits.torture(kind, plan, tmp_path, nursery, chosen=lambda number: number % 9 == 3)
    assert figures.kills >= 4


def test_a_map_that_is_killed_repeats_only_what_was_under_way(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    figures = inside.torture_map(kind, 2, SEED, tmp_path, nursery, items=100, concurrency=10, in_turn=True)
    assert 0 < figures.doubled <= 20


def test_an_agent_that_asks_is_killed_answered_and_finished_by_others(
    kind: str, tmp_path: Path, nursery: Nursery
) -> None:
    kills, through = waiting.approve_from_outside(kind, tmp_path, nursery)
    assert kills > 5
    assert through == 1
