"""make torture: hundreds of kills, power cuts and stopped workers, all from one seed.

PYTHONPATH=tests python -m crash.torture --seed 7 --store sqlite --part kills
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import calls, commits, fleet, inside, kills, powercut, scenarios, shaped, stopped, waiting
from .nursery import Nursery
from .stores import KINDS

PARTS = (
    *("kills", "commits", "calls", "branches", "children", "rounds", "waits", "streams"),
    *("shapes", "maps", "approvals", "cuts", "stopped"),
)
SERVED = {"postgres": ("world", "fleet", "stopped")}
"""Stores that a server of their own keeps, and the parts that torture them."""
COMMAND = "PYTHONPATH=tests python -m crash.torture"
Row = tuple[str, str, str, str]


class Torture:
    """One call of the command: where it works, what it found."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.nurseries = [Nursery(), Nursery()]
        self.rows: list[Row] = []
        self.failed = 0
        self._fleet: fleet.Fleet | None = None

    @contextmanager
    def part(self, part: str, store: str, title: str, size: str) -> Iterator[dict[str, Any]]:
        """Time a part, and put it into the table or its failure on the screen."""
        found: dict[str, Any] = {}
        begun = time.perf_counter()
        try:
            yield found
        except Exception as error:
            self.failed += 1
            command = f"{COMMAND} --seed {self.options.seed} --store {store} --part {part} {size}"
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

        everything = calls.EverythingPlan("everything", self.options.seed)
        for twice in (False, True):
            title = "the same of a run with waits, a child and a stream" + (", twice" if twice else "")
            with self.part("calls", store, title, "") as found:
                total, effects, killed = self._sweep(store, [everything], twice=twice)
                found["text"] = f"{killed} kill points at {total} commits and {effects} calls"

    def run_branches(self, store: str) -> None:
        """Part 6, branches."""
        seeds = range(self.options.seed, self.options.seed + 100)
        with self.part("branches", store, "20 branches of 3 calls, killed", "") as found:
            tell = _ticker(lambda f: f"{store}: {f.runs} of {len(seeds)} runs of branches")
            f = inside.torture_branches(store, seeds, self._place("branches"), self.nurseries[0], tell)
            found["text"] = (
                f"{f.runs} seeds, {f.kills} kills, {f.in_flight} calls under way at them, {f.doubled} effects doubled"
            )

    def run_children(self, store: str) -> None:
        """Part 6, children."""
        with self.part("children", store, "parents of 50 children, killed", "") as found:
            tell = _ticker(lambda f: f"{store}: {f.kills} kills, {f.runs} parents done")
            place = self._place("children")
            f = inside.torture_children(store, 100, self.options.seed, place, self.nurseries[0], progress=tell)
            found["text"] = f"{f.kills} kills, {f.runs} parents, {f.starts} call starts, every child once"

    def run_rounds(self, store: str) -> None:
        """Part 6, rounds."""
        with self.part("rounds", store, "10,000 calls, handed on every 100", "") as found:
            places = (50, 1_234, 4_999, 7_501, 9_950)
            f = inside.torture_rounds(
                store, self.options.seed, self._place("rounds"), self.nurseries[0], total=10_000, each=100, kills=places
            )
            took = ", ".join(f"{seconds * 1000:.0f}" for seconds in f.seconds)
            found["text"] = f"killed in calls {places}: {f.loaded} entries loaded, resumed in {took} ms"
            found["text"] += f", {f.lines} lines read" if store == "file" else ""

    def run_waits(self, store: str) -> None:
        """Part 7, waits."""
        one, two = self.nurseries
        with self.part("waits", store, "questions and timers without a process", "") as found:
            for beside in (False, True):
                waiting.answer_from_outside(store, self._place("asking"), one, beside=beside)
            waiting.fire_late(store, self._place("timing"), one)
            wins = waiting.race_answers(store, 300, self._place("races"), (one, two))
            found["text"] = f"300 races of two answers, won {wins[0]} : {wins[1]}"

    def run_streams(self, store: str) -> None:
        """Part 7, streams."""
        one, two = self.nurseries
        for changing in (False, True):
            with self.part(
                "streams", store, f"a stream of 5,000, {'changing' if changing else 'the same'}", ""
            ) as found:
                place = self._place("streams")
                f = waiting.read_across_kills(store, place, (one, two), chunks=5_000, changing=changing)
                found["text"] = (
                    f"{f.kills} kills, {f.reconnects} reconnects, {len(f.chunks)} chunks seen, "
                    f"{len(f.superseded)} superseded, {f.commits} commits"
                )

    def run_shapes(self, store: str) -> None:
        """Part 8, all shapes."""
        points = 0
        for name in shaped.NAMES:
            with self.part("shapes", store, f"{name}, at every commit and inside all", "") as found:
                plan = shaped.ShapePlan(name, self.options.seed)
                total, effects, killed = self._sweep(store, [plan])
                points += killed
                found["text"] = f"{killed} kill points at {total} commits and {effects} steps, calls and tools"
        with self.part("shapes", store, "all of these, and another kill", "") as found:
            plans = [shaped.ShapePlan(name, self.options.seed) for name in shaped.NAMES]
            _, _, killed = self._sweep(store, plans, twice=True)
            found["text"] = f"{killed} kill points, killed again behind each; {points + killed} kill points in all"

    def run_maps(self, store: str) -> None:
        """Part 8, maps."""
        for in_turn in (True, False):
            title = f"a map over 1,000, 50 at once, ending {'in turn' if in_turn else 'as it happens'}"
            with self.part("maps", store, title, "") as found:
                f = inside.torture_map(
                    store,
                    5,
                    self.options.seed,
                    self._place("maps"),
                    self.nurseries[0],
                    items=1000,
                    concurrency=50,
                    in_turn=in_turn,
                )
                found["text"] = (
                    f"{f.kills} kills, {f.in_flight} calls under way at them, {f.doubled} effects doubled, "
                    f"{f.commits} commits, {f.usual} undisturbed ({f.commits / f.usual:.2f} x)"
                )

    def run_approvals(self, store: str) -> None:
        """Part 8, approvals."""
        with self.part("approvals", store, "an agent that asks, three processes", "") as found:
            kills, through = waiting.approve_from_outside(store, self._place("approvals"), self.nurseries[0])
            found["text"] = (
                f"{kills} kills while it waited and was answered, {through} answers of the killed came through"
            )

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
                with self._served(store) as served:
                    stopped.torture(store, seed, place, *self.nurseries, moment, served=served)
                _show(f"{store}: {number + 1} of {rounds} late writers refused")
            found["text"] = f"{rounds} late writers, all refused and told so"

    def run_world(self, store: str) -> None:
        """Part 9, one large world."""
        with self.part("world", store, "500 runs, 5 workers, killed and cut off", "") as found:
            figures = fleet.Figures()
            self.fleet.torture(fleet.large(self.options.seed), self._place("world"), figures)
            found["text"] = str(figures)

    def run_fleet(self, store: str) -> None:
        """Part 9, many small worlds."""
        wanted = self.options.worlds
        with self.part("fleet", store, "small worlds of 25 runs, the same", f"--worlds {wanted}") as found:
            tell = _ticker(lambda f: f"{store}: {f.worlds} of {wanted} worlds, {f}")
            figures, seeds = fleet.Figures(), range(self.options.seed, self.options.seed + wanted)
            fleet.rounds(self.fleet, seeds, self._place("fleet"), figures, tell)
            found["text"] = f"{figures.worlds} worlds: {figures}"

    @property
    def fleet(self) -> fleet.Fleet:
        """The server and what it needs, from when it is first needed on."""
        if self._fleet is None:
            self._fleet = fleet.Fleet()
        return self._fleet

    @contextmanager
    def _served(self, store: str) -> Iterator[str | None]:
        """The URL of a new store, where a server keeps it."""
        if store not in SERVED:
            yield None
            return
        with self.fleet.server.schema() as schema:
            yield self.fleet.server.url(schema)

    def _place(self, name: str) -> Path:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        return place

    def close(self) -> None:
        """End the nurseries and print the table."""
        for nursery in self.nurseries:
            nursery.close()
        if self._fleet is not None:
            self._fleet.close()
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
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--store", choices=(*KINDS, *SERVED), help="only this store")
    parser.add_argument("--part", choices=(*PARTS, "world", "fleet"), action="append", help="only this part")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--cuts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--worlds", type=int, default=80)
    options = parser.parse_args()
    logging.getLogger("psycopg").addHandler(logging.NullHandler())  # a server that is stopped all the time is no news
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as folder:
        torture = Torture(options, Path(folder))
        try:
            for store in [options.store] if options.store else (*KINDS, *SERVED):
                parts = SERVED.get(store, PARTS)
                for part in options.part or parts:
                    if part in parts:
                        getattr(torture, f"run_{part}")(store)
        finally:
            torture.close()
    return 1 if torture.failed else 0


if __name__ == "__main__":
    sys.exit(main())
