"""The fixed-seed share of the torture by SIGKILL; `make torture` does far more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import commits, kills, victim
from .nursery import Nursery

SEED = 20240229


def test_runs_of_fifty_steps_survive_kills_at_random_instants(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    figures = kills.torture(kind, 25, SEED, tmp_path, nursery)
    assert figures.kills == 25
    assert figures.acknowledged > 25


@pytest.mark.parametrize("name", ["plain", "keep_latest"])
def test_a_kill_before_and_after_every_commit_loses_nothing(
    kind: str, name: str, tmp_path: Path, nursery: Nursery
) -> None:
    figures = commits.torture(kind, name, SEED, tmp_path, nursery)
    assert figures.kills == 2 * figures.commits


@pytest.mark.parametrize("name", sorted(victim.SCENARIOS.keys() - {"plain", "keep_latest"}))
def test_a_kill_before_and_after_every_fifth_commit_loses_nothing(
    kind: str, name: str, tmp_path: Path, nursery: Nursery
) -> None:
    figures = commits.torture(kind, name, SEED, tmp_path, nursery, chosen=lambda number: number % 5 == 4)
    assert figures.kills > 0
