"""Part 2: a kill before and after every commit of the interesting runs, and inside their calls."""

from __future__ import annotations

import itertools
import random
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
        self.commits = self.effects = self.kills = self.missed = 0
        self.seconds = 0.0


class Plan:
    """A scenario: where it is killed, and what must come of it."""

    phases: tuple[str, ...] = PHASES
    exact = True
    """Whether the number of its commits is the same every time."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed

    def witness(self, kind: str, place: Path) -> Witness:
        """Who looks at its store."""
        names = [steps.name_of(index) for index in range(scenarios.STEPS + 5)]
        witness = Witness(kind, place / "store", place / "copy", place / "ledger", names=names)
        witness.drops_history = self.name in DROPS_HISTORY
        witness.deletes = frozenset({"a"} if self.name == "delete" else ())
        return witness

    def expected(self, witness: Witness) -> str:
        """The result, as what the witness saw after the kill lets expect it."""
        return scenarios.scenario_result(self.name, self.seed)

    def undisturbed(self, witness: Witness, result: str) -> None:
        """Look at what a run that nobody killed has done. Raises AssertionError."""
        check_result(self.name, result, self.expected(witness))

    def check(self, witness: Witness) -> None:
        """Look at what a run that was killed and finished has done. Raises AssertionError."""


def count(kind: str, plan: Plan, folder: Path, nursery: Nursery) -> tuple[int, int]:
    """How many commits the scenario makes when nothing disturbs it, counted from outside the store, and effects."""
    place = folder / f"{kind}-{plan.name}-undisturbed"
    (place / "store").mkdir(parents=True)
    witness = plan.witness(kind, place)
    reports = nursery.run("scenario", **_arguments(kind, plan, place))
    last = reports[-1]
    assert last["what"] == "result", f"{plan.name} ended with {last}"
    _watch(witness, reports)
    plan.undisturbed(witness, last["value"])
    return int(last["commits"]), witness.starts


def torture(
    kind: str,
    plan: Plan,
    folder: Path,
    nursery: Nursery,
    *,
    chosen: Callable[[int], bool] = lambda _: True,
    twice: bool = False,
    progress: Callable[[Commits], None] = lambda _: None,
) -> Commits:
    """Kill at each of its points that is chosen, and go on. Raises AssertionError with the place.

    With `twice` whoever goes on is killed as well, at a point that the seed decides.
    """
    figures, begun = Commits(), time.perf_counter()
    figures.commits, figures.effects = count(kind, plan, folder, nursery)
    for phase in plan.phases:
        last = figures.commits if phase in PHASES else figures.effects
        # Where commits may be shared there may be more of them than last time: go on while there are.
        more_commits = phase in PHASES and not plan.exact
        for number in filter(chosen, itertools.count(1) if more_commits else range(1, last + 1)):
            place = folder / f"{kind}-{plan.name}-{phase}-{number}"
            try:
                more = (_second(plan, phase, number, last),) if twice else ()
                killed = kill_at(kind, plan, place, nursery, (phase, number), *more)
            except Exception as error:
                raise AssertionError(f"killed {phase} {number} of {last} of {plan.name}: {error}") from error
            assert killed or not plan.exact, f"{plan.name} has {last} places, but nothing stands {phase} the {number}."
            shutil.rmtree(place)
            if more_commits and number > last and not killed:
                break
            figures.kills += killed
            figures.missed += not killed
            progress(figures)
    # One more would mean that a fault point stands where nothing is committed.
    place = folder / f"{kind}-{plan.name}-beyond"
    beyond = plan.exact and kill_at(kind, plan, place, nursery, ("before", figures.commits + 1))
    assert not beyond, f"{plan.name}: a fault too many"
    figures.seconds = time.perf_counter() - begun
    return figures


def _second(plan: Plan, phase: str, number: int, last: int) -> tuple[str, int]:
    chance = random.Random(f"{plan.seed}/{plan.name}/{phase}/{number}")
    return chance.choice(plan.phases), chance.randint(1, max(last // 2, 2))


def kill_at(kind: str, plan: Plan, place: Path, nursery: Nursery, *points: tuple[str, int]) -> bool:
    """A kill at each of these points, one process after the other, and what comes after; whether the first died."""
    (place / "store").mkdir(parents=True)
    arguments, witness = _arguments(kind, plan, place), plan.witness(kind, place)
    killed, expected = [], ""
    for point in points:
        child = nursery.start("scenario", **arguments, die=point)
        _watch(witness, child.finish())
        killed.append(child.status == -signal.SIGKILL)
        expected = plan.expected(witness)
    source = _source(witness, plan)
    reports = nursery.run("scenario", **arguments)
    _watch(witness, reports)
    check_result(plan.name, reports[-1]["value"], expected)
    plan.check(witness)
    assert not source or source == _source(witness, plan), "the source of the fork was changed"
    # And once more, because a run that has ended gives its result and does nothing.
    starts = witness.starts
    again = nursery.run("scenario", **arguments)
    _watch(witness, again)
    assert witness.starts == starts, "a finished run began a step again"
    check_result(plan.name, again[-1]["value"], expected)
    return killed[0]


def _watch(witness: Witness, reports: Iterable[dict[str, object]]) -> None:
    witness.acknowledge(reports)
    witness.look()


def _source(witness: Witness, plan: Plan) -> list[object]:
    """The entries of the run that was forked, once it has been."""
    return list(witness.seen["a"].entries.values()) if plan.name == "fork" and "b" in witness.seen else []


def _arguments(kind: str, plan: Plan, place: Path) -> dict[str, object]:
    return {"store": url(kind, place / "store"), "name": plan.name, "seed": plan.seed, "ledger": str(place / "ledger")}
