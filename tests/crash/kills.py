"""Part 1: SIGKILL at random instants of 50-step runs, until each run is done all the same."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import steps
from .invariants import Witness, check_result
from .nursery import Child, Nursery, Report, result_of
from .stores import url

STEPS = 50
RUNS_PER_STORE = 5


class Kills:
    """What happened."""

    def __init__(self) -> None:
        self.kills = self.runs = self.starts = self.acknowledged = self.in_opening = 0
        self.seconds = 0.0


def torture(
    kind: str, kills: int, seed: int, folder: Path, nursery: Nursery, progress: Callable[[Kills], None] = lambda _: None
) -> Kills:
    """Kill until there were `kills` kills. Raises AssertionError with the place when something is wrong."""
    figures, begun = Kills(), time.perf_counter()
    series = 0
    while figures.kills < kills:
        place = folder / f"{kind}-{series}"
        try:
            _one_store(kind, kills, f"{seed}/{kind}/{series}", place, nursery, figures, progress)
        except Exception as error:
            raise AssertionError(f"store {series}, after {figures.kills} kills: {error}") from error
        series += 1
    figures.seconds = time.perf_counter() - begun
    return figures


def _one_store(
    kind: str, kills: int, seed: str, place: Path, nursery: Nursery, figures: Kills, progress: Callable[[Kills], None]
) -> None:
    """A few runs on one store: what is done to one must not touch the others."""
    chance = random.Random(seed)
    (place / "store").mkdir(parents=True)
    names = [steps.name_of(index) for index in range(STEPS)]
    witness = Witness(kind, place / "store", place / "copy", place / "ledger", names=names)
    for number in range(RUNS_PER_STORE):
        arguments = {
            "store": url(kind, place / "store"),
            "run": f"run-{number}",
            "seed": chance.randrange(10**9),
            "steps": STEPS,
            "work": 0.001,
            "ledger": str(place / "ledger"),
        }
        result = carry_through(nursery, "plain", arguments, witness, chance, figures, kills, progress=progress)
        check_result(arguments["run"], result, steps.expected(arguments["seed"], STEPS))
        assert witness.seen[arguments["run"]].head.status == "completed"
        figures.runs += 1
    figures.starts += witness.starts
    _check_leftovers(kind, place / "store", figures.kills)


def _check_leftovers(kind: str, folder: Path, kills: int) -> None:
    """What killed processes leave behind stays bounded."""
    if kind == "sqlite":
        names = {"runs.db", "runs.db-wal", "runs.db-shm", "runs.db-owners"}
        assert {file.name for file in folder.iterdir()} <= names
        assert sum(file.stat().st_size for file in folder.iterdir()) < 32_000_000
    else:
        begun = [file for file in folder.rglob("*") if file.name.startswith((".new-", ".gone-"))]
        assert len(begun) <= kills
        assert len(list(folder.rglob("*.tmp"))) <= 2 * RUNS_PER_STORE + kills


def carry_through(
    nursery: Nursery,
    program: str,
    arguments: dict[str, Any],
    witness: Witness,
    chance: random.Random,
    figures: Kills,
    kills: int,
    *,
    starts: int = 14,
    opening: float = 0.15,
    killed: Callable[[list[Report]], None] = lambda _: None,
    progress: Callable[[Kills], None] = lambda _: None,
) -> str:
    """The result of a program that is killed again and again, until there were `kills` kills in all.

    Each time it dies after at most `starts` starts of steps or calls, but for the share of them that dies while
    `opening`; `killed` gets what it had reported.
    """
    while figures.kills < kills:
        child = nursery.start(program, **arguments)
        reports = kill_somewhere(child, chance, figures, starts, opening)
        witness.acknowledge(reports)
        figures.acknowledged += sum(report["what"] == "acknowledged" for report in reports)
        witness.look()
        killed(reports)
        progress(figures)
        if reports and reports[-1]["what"] == "result":
            return str(reports[-1]["value"])
    result = result_of(nursery.run(program, **arguments))
    witness.look()
    return result


def kill_somewhere(child: Child, chance: random.Random, figures: Kills, starts: int, opening: float) -> list[Report]:
    """Kill the child in the middle of what it does; all that it reported."""
    reports: list[Report] = []
    if chance.random() < opening:
        # While it opens the store, claims the run, or has just begun with it.
        figures.in_opening += 1
        time.sleep(chance.uniform(0, 0.04))
    else:
        left = chance.randint(1, starts)
        for report in child.reports():
            reports.append(report)
            left -= report["what"] == "started"
            if left == 0:
                break
        # A step takes a millisecond and its commit about as long: this lands before, in and after both.
        time.sleep(chance.uniform(0, 0.004))
    child.signal(signal.SIGKILL)
    reports += child.finish()
    figures.kills += child.status == -signal.SIGKILL
    return reports
