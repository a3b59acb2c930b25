"""The fixed-seed share of the torture by SIGKILL; `make torture` does far more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import commits, kills, scenarios
from .nursery import Nursery

SEED = 20240229


def test_runs_of_fifty_steps_survive_kills_at_random_instants(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    figures = kills.torture(kind, 20, SEED, tmp_path, nursery)
    assert figures.kills == 20
    assert figures.acknowledged > 20


def test_a_kill_before_and_after_every_commit_loses_nothing(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    figures = commits.torture(kind, commits.Plan("plain", SEED), tmp_path, nursery)
    assert figures.kills == 2 * figures.commits


@pytest.mark.parametrize("name", sorted(scenarios.SCENARIOS.keys() - {"plain"}))
def test_a_kill_before_and_after_every_sixth_commit_loses_nothing(
    kind: str, name: str, tmp_path: Path, nursery: Nursery
) -> None:
    figures = commits.torture(kind, commits.Plan(name, SEED), tmp_path, nursery, chosen=lambda number: number % 6 == 3)
    assert figures.kills > 0
