"""What was acknowledged is there right after an outage, and the last good step can be read."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

from holdfast import Runtime

from . import fleet_flows
from .fleet_guard import check_baggage
from .fleet_watch import Watch
from .invariants import check_state
from .steps import name_of

_SAMPLE = 3
_CHECKPOINTS = ("created", "checkpointed", "rewound")
_STEPS = [name_of(index) for index in range(fleet_flows.STEPS)]


class Acknowledged:
    """Reads what the workers write down, and what the command says."""

    def __init__(self, place: Path, url: str, watch: Watch) -> None:
        self._place, self._url, self._watch = place, url, watch
        self.entries: set[tuple[str, int]] = set()
        self.completed: set[str] = set()
        self._checkpoints: dict[str, int] = defaultdict(int)

    def read(self) -> None:
        """Take in all that was acknowledged up to now."""
        for text in _lines(self._place / "acknowledged"):
            run, seq, kind = text.split()
            self.entries.add((run, int(seq)))
            if kind in _CHECKPOINTS:
                self._checkpoints[run] = max(self._checkpoints[run], int(seq))
        said = (text.rpartition(" ") for text in _lines(self._place / "said"))
        self.completed |= {run for run, _, what in said if what == "completed"}

    def check(self, chance: random.Random, deleted: set[str]) -> int:
        """Raises AssertionError; how many entries were known. The server must be there."""
        self.read()
        known = {one for one in self.entries if one[0] not in deleted}
        found = self._watch.rows("select r.id, e.seq, r.status from {s}.runs r join {s}.entries e on e.n = r.n")
        gone = known - {(run, seq) for run, seq, _ in found}
        assert not gone, f"acknowledged, and gone after an outage: {sorted(gone)[:5]}"
        completed = {run for run, _, status in found if status == "completed"} | deleted
        assert self.completed <= completed, f"said to have completed: {self.completed - completed}"
        runs = sorted({run for run, _ in known})
        asyncio.run(self._load(chance.sample(runs, min(_SAMPLE, len(runs)))))
        return len(known)

    async def _load(self, runs: list[str]) -> None:
        async with Runtime(self._url) as rt:
            rt.register(*fleet_flows.FLOWS)
            for run in runs:
                last = await rt.load(run)
                assert last is not None, f"run {run} was acknowledged, and has no checkpoint"
                assert last.seq >= self._checkpoints[run], (
                    f"{run}@{self._checkpoints[run]} was acknowledged, not {last.id}"
                )
                check_baggage(run, last.state)
                if isinstance(last.state, dict) and "done" in last.state:
                    check_state(last.id, _STEPS, last.state, last.step, last.next)


def _lines(file: Path) -> list[str]:
    """Those that are whole."""
    text = file.read_text() if file.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
