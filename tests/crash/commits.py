"""Part 2: a kill before and after every commit of the interesting runs."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from . import scenarios, steps
from .invariants import Witness, check_result
from .nursery import Nursery
from .stores import url

DROPS_HISTORY = frozenset({"keep_latest", "on_finish_delete"})
PHASES = ("before", "after")


class Commits:
    """What happened in one scenario."""

    def __init__(self) -> None:
        self.commits = self.kills = 0
        self.seconds = 0.0


def count(kind: str, name: str, seed: int, folder: Path, nursery: Nursery) -> int:
    """How many commits the scenario makes when nothing disturbs it, counted from outside the store."""
    place = folder / f"{kind}-{name}-undisturbed"
    (place / "store").mkdir(parents=True)
    reports = nursery.run("scenario", **_arguments(kind, name, seed, place))
    last = reports[-1]
    assert last["what"] == "result", f"{name} ended with {last}"
    check_result(name, last["value"], scenarios.scenario_result(name, seed))
    return int(last["commits"])


def torture(
    kind: str,
    name: str,
    seed: int,
    folder: Path,
    nursery: Nursery,
    *,
    chosen: Callable[[int], bool] = lambda _: True,
    progress: Callable[[Commits], None] = lambda _: None,
) -> Commits:
    """Kill before and after each commit that is chosen, and go on. Raises AssertionError with the place."""
    figures, begun = Commits(), time.perf_counter()
    figures.commits = count(kind, name, seed, folder, nursery)
    numbers = [number for number in range(1, figures.commits + 1) if chosen(number)]
    for number in numbers:
        for phase in PHASES:
            place = folder / f"{kind}-{name}-{phase}-{number}"
            try:
                killed = kill_at(kind, name, seed, place, nursery, phase, number)
            except Exception as error:
                raise AssertionError(f"killed {phase} commit {number} of {name}: {error}") from error
            assert killed, f"{name} makes {figures.commits} commits, but nothing stands {phase} the {number}. of them"
            figures.kills += 1
            shutil.rmtree(place)
            progress(figures)
    assert figures.kills == 2 * len(numbers)
    # One more would mean that a fault point stands where nothing is committed.
    place = folder / f"{kind}-{name}-beyond"
    assert not kill_at(kind, name, seed, place, nursery, "before", figures.commits + 1), f"{name}: a fault too many"
    figures.seconds = time.perf_counter() - begun
    return figures


def kill_at(kind: str, name: str, seed: int, place: Path, nursery: Nursery, phase: str, number: int) -> bool:
    """One kill and what comes after it; whether there was a kill at all."""
    (place / "store").mkdir(parents=True)
    arguments = _arguments(kind, name, seed, place)
    names = [steps.name_of(index) for index in range(scenarios.STEPS + 5)]
    witness = Witness(kind, place / "store", place / "copy", place / "ledger", names=names)
    witness.drops_history = name in DROPS_HISTORY
    witness.deletes = frozenset({"a"} if name == "delete" else ())
    child = nursery.start("scenario", **arguments, die=(phase, number))
    _watch(witness, child.finish())
    source = _source(witness, name)
    reports = nursery.run("scenario", **arguments)
    _watch(witness, reports)
    check_result(name, reports[-1]["value"], scenarios.scenario_result(name, seed))
    assert not source or source == _source(witness, name), "the source of the fork was changed"
    # And once more, because a run that has ended gives its result and does nothing.
    starts = witness.starts
    again = nursery.run("scenario", **arguments)
    _watch(witness, again)
    assert witness.starts == starts, "a finished run began a step again"
    check_result(name, again[-1]["value"], scenarios.scenario_result(name, seed))
    return child.status == -signal.SIGKILL


def _watch(witness: Witness, reports: Iterable[dict[str, object]]) -> None:
    witness.acknowledge(reports)
    witness.look()


def _source(witness: Witness, name: str) -> list[object]:
    """The entries of the run that was forked, once it has been."""
    return list(witness.seen["a"].entries.values()) if name == "fork" and "b" in witness.seen else []


def _arguments(kind: str, name: str, seed: int, place: Path) -> dict[str, object]:
    return {"store": url(kind, place / "store"), "name": name, "seed": seed, "ledger": str(place / "ledger")}
