"""Part 5: five journaled calls, killed at every commit and inside every call, under each `on_doubt` policy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from . import functions
from .commits import PHASES, Plan
from .invariants import Witness

INSIDE = ("begins", "inside", "done")
NAMES = tuple(functions.SCENARIOS)


class CallsPlan(Plan):
    """One body under one policy. What is promised is worked out from the log as the kill has left it."""

    phases = (*PHASES, *INSIDE)

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        self._policy = name.partition(" ")[2]
        self._promised: Counter[int] = Counter()
        self._before: Counter[int] = Counter()
        self._doubtful: set[int] = set()
        self._asked: set[int] = set()
        """Those that were in doubt after this kill or an earlier one."""

    def witness(self, kind: str, place: Path) -> Witness:
        """Who looks at its store: runs of functions. It knows nothing of other kills."""
        self._asked = set()
        return Witness(kind, place / "store", place / "copy", place / "ledger")

    def expected(self, witness: Witness) -> str:
        """The results; notes down how often each effect will have been had by then."""
        seen, index_of = witness.seen.get("a"), functions.index_of
        done = {index_of(key) for key in seen.calls if "/?" not in key} if seen else set()
        self._doubtful = {index_of(key) for key in seen.in_doubt} if seen else set()
        self._asked |= self._doubtful
        self._before = Counter({index_of(name): times for (_, name), times in witness.effects.items()})
        assert all(self._before[index] for index in done - self._asked), "a result was committed without its effect"
        assert self._policy != "retry" or not self._doubtful, "an intent was written for a call that may be repeated"
        results = []
        for index in range(functions.CALLS):
            told = self._policy == "done" and index in self._asked
            self._promised[index] = self._before[index] + (index not in done and not told)
            results.append(f"{index}:told" if told else f"{index}:made")
        return repr("CallInDoubtError" if self._failed else results)

    @property
    def _failed(self) -> bool:
        return self._policy == "fail" and bool(self._doubtful)

    def check(self, witness: Witness) -> None:
        """Each effect was had exactly as often as the policy promises."""
        had = Counter({functions.index_of(name): times for (_, name), times in witness.effects.items()})
        status = witness.seen["a"].head.status
        assert status == ("failed" if self._failed else "completed"), f"the run is {status}"
        if self._policy != "retry":
            begun_unasked = {index for index, times in had.items() if times > 1} - self._asked
            assert not begun_unasked, f"the effects {begun_unasked} were had again, and nobody was asked"
        if self._failed:
            # What ran beside the call in doubt may have begun; nothing was had twice, and nothing comes after it.
            assert max(had.values(), default=0) <= 1
            assert all(had[index] == self._before[index] for index in self._doubtful)
            assert had[functions.CALLS - 1] == self._before[functions.CALLS - 1]
        else:
            assert had == +self._promised, f"effects were had {dict(had)} times, {dict(self._promised)} was promised"
