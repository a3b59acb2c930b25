"""Part 8: teams, graphs and agents, killed at every commit and inside every step, call and tool."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from holdfast import Strategy

from . import shapes
from .commits import PHASES, Plan
from .invariants import Witness

INSIDE = ("enters", "inside", "leaves")
NAMES = tuple(shapes.SCENARIOS)


class ShapePlan(Plan):
    """One shape. Whatever is killed, it comes to what it comes to undisturbed, by the same states on the way."""

    phases = (*PHASES, *INSIDE)

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        # What ends at the same time shares a commit: calls side by side, and a child with its parent.
        self.exact = name in shapes.TEAMS and shapes.TEAMS[name] is not Strategy.SEQUENTIAL
        self._result = ""
        self._steps: list[list[str]] = []
        self._usual: Counter[tuple[bool, str]] = Counter()
        self._promised: Counter[tuple[bool, str]] = Counter()

    def witness(self, kind: str, place: Path) -> Witness:
        """Who looks at its store. What is in its states is told by the transcript."""
        return Witness(kind, place / "store", place / "copy", place / "ledger")

    def undisturbed(self, witness: Witness, result: str) -> None:
        """Remember what it comes to."""
        self._result, self._steps, self._usual = result, _steps(witness), _effects(witness)
        if self.name in shapes.TEAMS:
            signed = str(shapes.SIGNED[shapes.TEAMS[self.name]].split())
            assert signed in result, f"{self.name} was signed otherwise: {result}"
        assert all(_committed(witness).values()), "an effect was had without a commit"
        assert _committed(witness) == self._usual, "an effect was had twice, and nobody was killed"

    def expected(self, witness: Witness) -> str:
        """The same; notes down how often each effect will have been had by then."""
        # What was not committed when the process died is done again, once: no more and no less.
        self._promised = _effects(witness) + self._usual
        self._promised.subtract(_committed(witness))
        return self._result

    def check(self, witness: Witness) -> None:
        """Every effect was had as often as promised, every step is in a log once."""
        had = _effects(witness)
        wrong = {name: (had[name], times) for name, times in self._promised.items() if had[name] != times}
        assert not wrong, f"effects were had other times than promised: {wrong}"
        assert had.total() == self._promised.total(), f"{had - self._promised} should not have been"
        assert _steps(witness) == self._steps, f"the logs have the steps {_steps(witness)}"
        for run, seen in witness.seen.items():
            assert seen.head.status == "completed", f"run {run} is {seen.head.status}"


def _steps(witness: Witness) -> list[list[str]]:
    """The steps of every run, in order; that of the runs is none that counts."""
    return sorted(seen.steps for seen in witness.seen.values())


def _effects(witness: Witness) -> Counter[tuple[bool, str]]:
    """How often each step or call has begun, of the run itself or of its children."""
    had: Counter[tuple[bool, str]] = Counter()
    for (run, name), times in witness.effects.items():
        had[run == "a", name] += times
    return had


def _committed(witness: Witness) -> Counter[tuple[bool, str]]:
    """How often each step or call that has had an effect is in the log."""
    found: Counter[tuple[bool, str]] = Counter()
    for run, name in witness.effects:
        seen = witness.seen.get(run)
        if seen is not None:
            times = seen.steps.count(name) if "/" not in name else name in seen.calls or name in seen.failed
            found[run == "a", name] += times
    return found
