"""make torture: hundreds of kills, power cuts and stopped workers, all from one seed.

python -m tests.crash.torture --seed 7 --store sqlite --part kills
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import calls, commits, kills, powercut, scenarios, stopped
from .nursery import Nursery
from .stores import KINDS

PARTS = ("kills", "commits", "calls", "cuts", "stopped")
Row = tuple[str, str, str, str]


class Torture:
    """One call of the command: where it works, what it found."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.nurseries = [Nursery(), Nursery()]
        self.rows: list[Row] = []
        self.failed = 0

    @contextmanager
    def part(self, part: str, store: str, title: str, size: str) -> Iterator[dict[str, Any]]:
        """Time a part, and put it into the table or its failure on the screen."""
        found: dict[str, Any] = {}
        begun = time.perf_counter()
        try:
            yield found
        except Exception as error:
            self.failed += 1
            command = f"python -m tests.crash.torture --seed {self.options.seed} --store {store} --part {part} {size}"
            print(f"\nFAILED  {title} ({store}): {error}\n        again: {command}", flush=True)
            self.rows.append((title, store, "FAILED", f"{time.perf_counter() - begun:.0f} s"))
        else:
            self.rows.append((title, store, found["text"], f"{time.perf_counter() - begun:.0f} s"))
            _show("")

    def run_kills(self, store: str) -> None:
        """Part 1."""
        wanted = self.options.kills
        with self.part("kills", store, "SIGKILL at random instants", f"--kills {wanted}") as found:
            tell = _ticker(lambda f: f"{store}: {f.kills} of {wanted} kills, {f.runs} runs of {kills.STEPS} steps done")
            f = kills.torture(store, wanted, self.options.seed, self._place("kills"), self.nurseries[0], tell)
            found["text"] = (
                f"{f.kills} kills ({f.kills / f.seconds:.1f}/s, {f.in_opening} while opening), {f.runs} runs, "
                f"{f.starts} step starts, {f.acknowledged} acknowledged, 0 lost"
            )

    def run_commits(self, store: str) -> None:
        """Part 2."""
        plans = [commits.Plan(name, self.options.seed) for name in scenarios.SCENARIOS]
        with self.part("commits", store, "a kill before and after every commit", "") as found:
            total, _, killed = self._sweep(store, plans)
            assert killed == 2 * total
            found["text"] = f"{killed} kills at {total} commits of {len(plans)} kinds of run"

    def run_calls(self, store: str) -> None:
        """Part 5."""
        plans = [calls.CallsPlan(name, self.options.seed) for name in calls.NAMES]
        for twice in (False, True):
            title = "a kill at every commit and inside every call" + (", and another one" if twice else "")
            with self.part("calls", store, title, "") as found:
                total, effects, killed = self._sweep(store, plans, twice=twice)
                assert killed == 2 * total + len(calls.INSIDE) * effects
                found["text"] = f"{killed} kill points at {total} commits and {effects} calls of {len(plans)} kinds"

    def _sweep(self, store: str, plans: Iterable[commits.Plan], *, twice: bool = False) -> tuple[int, int, int]:
        """How many commits, calls and kills there were."""
        figures = []
        for plan in plans:
            tell = _ticker(lambda f, name=plan.name: f"{store}: {name}, {f.kills} kills at {f.commits} commits")
            place = self._place(f"commits-{plan.name}")
            figures.append(commits.torture(store, plan, place, self.nurseries[0], twice=twice, progress=tell))
        return sum(f.commits for f in figures), sum(f.effects for f in figures), sum(f.kills for f in figures)

    def run_cuts(self, store: str) -> None:
        """Part 3, with proof that it can fail."""
        for durability, wanted in (("power", self.options.cuts), ("process", max(self.options.cuts // 4, 1))):
            title = f"power cuts, durability={durability}"
            with self.part("cuts", store, title, f"--cuts {self.options.cuts}") as found:
                tell = _ticker(lambda f, wanted=wanted: f"{store}: {f.cuts} of {wanted} cuts, {f.lost} commits lost")
                place = self._place(f"cuts-{durability}")
                f = powercut.torture(store, wanted, self.options.seed, place, durability=durability, progress=tell)
                if durability == "process" and wanted >= 50:
                    assert f.lost or f.damaged, (
                        "nothing was lost although nothing was flushed: these cuts prove nothing"
                    )
                found["text"] = (
                    f"{f.cuts} cuts ({f.cuts / f.seconds:.0f}/s), {f.lost} acknowledged commits lost in "
                    f"{f.cuts_that_lost} cuts (at most {f.lost_at_most}), {f.damaged} damaged, {f.resumed} resumed"
                )

    def run_stopped(self, store: str) -> None:
        """Part 4."""
        rounds = self.options.rounds
        with self.part("stopped", store, "SIGSTOP past the lease", f"--rounds {rounds}") as found:
            for number in range(rounds):
                seed = random.Random(f"{self.options.seed}/{number}").randrange(10**9)
                place, moment = self._place("stopped") / str(number), stopped.MOMENTS[number % 2]
                stopped.torture(store, seed, place, *self.nurseries, moment)
                _show(f"{store}: {number + 1} of {rounds} late writers refused")
            found["text"] = f"{rounds} late writers, all refused and told so"

    def _place(self, name: str) -> Path:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        return place

    def close(self) -> None:
        """End the nurseries and print the table."""
        for nursery in self.nurseries:
            nursery.close()
        widths = [max(len(row[i]) for row in [*self.rows, ("",) * 4]) for i in range(4)]
        print(f"\nseed {self.options.seed}")
        for row in self.rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _ticker(text: Callable[[Any], str]) -> Callable[[Any], None]:
    """Shows the progress, but not more often than a person can read."""
    shown = [0.0]

    def tell(figures: Any) -> None:
        if time.perf_counter() - shown[0] > (0.2 if sys.stderr.isatty() else 15.0):
            shown[0] = time.perf_counter()
            _show(text(figures))

    return tell


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


def main() -> int:
    """The exit code: 1 when anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.torture")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--store", choices=KINDS, help="only this store")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--cuts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as folder:
        torture = Torture(options, Path(folder))
        try:
            for store in [options.store] if options.store else KINDS:
                for part in options.part or PARTS:
                    getattr(torture, f"run_{part}")(store)
        finally:
            torture.close()
    return 1 if torture.failed else 0


if __name__ == "__main__":
    sys.exit(main())
