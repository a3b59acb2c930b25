"""Part 5: five journaled calls, killed at every commit and inside every call, under each `on_doubt` policy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.core.history import read_body
from holdfast.model import RESULT_KINDS, Kind

from . import functions
from .commits import PHASES, Plan
from .invariants import Seen, Witness

INSIDE = ("begins", "inside", "done")
NAMES = tuple(functions.FIVE_CALLS)


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
        self._check_order(done)
        results = []
        for index in range(functions.CALLS):
            told = self._policy == "done" and index in self._asked
            self._promised[index] = self._before[index] + (index not in done and not told)
            results.append(f"{index}:told" if told else f"{index}:made")
        return repr("CallInDoubtError" if self._failed else results)

    def _check_order(self, done: set[int]) -> None:
        """A result is durable before the next line: whatever has begun, all before it is in the log."""
        for index in +self._before:
            earlier = set(range(index)) - ({2} if index == 3 else set())  # those two run side by side
            assert earlier <= done, f"call {index} began when {earlier - done} had not been committed"

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


class EverythingPlan(Plan):
    """Calls, a question, messages, a sleep, a child and a stream in one run."""

    phases = (*PHASES, *INSIDE)
    exact = False  # what comes in together shares a commit

    def witness(self, kind: str, place: Path) -> Witness:
        """Who looks at its store: runs of functions."""
        return Witness(kind, place / "store", place / "copy", place / "ledger")

    def expected(self, witness: Witness) -> str:
        """Whatever was killed, the same as undisturbed."""
        return repr(["0:made", list(functions.NUMBERS), 42, "1:made", self.seed + 1, "2:made"])

    def check(self, witness: Witness) -> None:
        """The streams are whole, and every wait was ended by one thing."""
        assert len(witness.seen) == 2, f"there are the runs {sorted(witness.seen)}"
        for run, seen in witness.seen.items():
            assert seen.head.status == "completed"
            emitted = [data["data"] for data in standing_chunks(seen)]
            wanted = [0, 1, 2, 3] if run == "a" else [self.seed, self.seed + 1]
            assert emitted == wanted, f"run {run} has emitted {emitted}"
            ended = [read_body(run, e)["key"] for e in seen.entries.values() if e.kind in RESULT_KINDS]
            assert len(ended) == len(set(ended)), f"run {run}: something was ended twice: {ended}"


def standing_chunks(seen: Seen) -> list[dict[str, Any]]:
    """The chunks of a run that were not superseded, in order."""
    bodies = {entry.seq: (entry.kind, read_body(seen.head.id, entry)) for entry in seen.entries.values()}
    gone = {seq for kind, body in bodies.values() if kind == Kind.SUPERSEDED for seq in body["seqs"]}
    return [body for seq, (kind, body) in sorted(bodies.items()) if kind == Kind.EMITTED and seq not in gone]
