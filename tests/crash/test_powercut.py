"""The fixed-seed share of the power cuts; `make torture` makes thousands."""

from __future__ import annotations

from pathlib import Path

from . import powercut

SEED = 20240229


def test_a_power_cut_takes_nothing_back_that_was_acknowledged(kind: str, tmp_path: Path) -> None:
    figures = powercut.torture(kind, 120, SEED, tmp_path)
    assert figures.lost == 0
    assert figures.resumed > 0


def test_with_durability_process_a_power_cut_takes_commits_back_but_the_file_stays_sound(tmp_path: Path) -> None:
    figures = powercut.torture("sqlite", 60, SEED, tmp_path, durability="process")
    assert figures.lost > 0  # the cuts can do harm, so the test above means something
