"""Part 6: runs of branches, children and rounds, killed at random instants."""

from __future__ import annotations

import ast
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import functions
from .invariants import Witness, check_result
from .kills import Kills, carry_through
from .nursery import Nursery, Report, result_of
from .stores import url

BRANCH_CALLS = functions.BRANCHES * functions.IN_ROW


def _begin(kind: str, place: Path, seed: int, **more: Any) -> tuple[dict[str, Any], Witness]:
    """What a program is started with, and who looks at its store."""
    (place / "store").mkdir(parents=True)
    ledger = place / "ledger"
    arguments = {"store": url(kind, place / "store"), "seed": seed, "ledger": str(ledger), **more}
    return arguments, Witness(kind, place / "store", place / "copy", ledger)


class Branches(Kills):
    """What happened to runs of branches."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = self.doubled = 0


def torture_branches(
    kind: str, seeds: range, folder: Path, nursery: Nursery, progress: Callable[[Branches], None] = lambda _: None
) -> Branches:
    """A run for each seed, killed once or twice in its middle. Raises AssertionError with the seed."""
    figures = Branches()
    for seed in seeds:
        try:
            _one_run_of_branches(kind, seed, folder / f"{kind}-{seed}", nursery, figures)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        figures.runs += 1
        progress(figures)
    return figures


def _one_run_of_branches(kind: str, seed: int, place: Path, nursery: Nursery, figures: Branches) -> None:
    arguments, witness = _begin(kind, place, seed)
    chance, before, in_flight = random.Random(seed), Counter[tuple[str, str]](), [0]

    def killed(reports: list[Report]) -> None:
        # Of this process alone: what an earlier one had under way has been counted at its own kill.
        begun = {call for _, call in witness.effects - before}
        returned = {report["call"] for report in reports if report["what"] == "returned"}
        lost = returned - witness.seen["a"].calls.keys() if returned else set()
        assert not lost, f"the results of {lost} were given to their branches and are not in the log"
        in_flight[0] += len(begun - returned)
        before.update(witness.effects - before)

    most = figures.kills + chance.randint(1, 2)
    result = carry_through(
        nursery, "branching", arguments, witness, chance, figures, most, starts=BRANCH_CALLS // 2, killed=killed
    )
    _check_branches(ast.literal_eval(result), place / "ledger")
    doubled = witness.starts - BRANCH_CALLS
    assert doubled <= in_flight[0], (
        f"{doubled} effects were had again, with {in_flight[0]} calls under way at the kills"
    )
    figures.doubled, figures.in_flight = figures.doubled + doubled, figures.in_flight + in_flight[0]


def _check_branches(results: list[list[list[Any]]], ledger: Path) -> None:
    """Every result is in its own place and is one that its call came to."""
    made = Counter((line.split()[1], int(line.split()[4])) for line in ledger.read_text().splitlines())
    keys = set()
    for branch, row in enumerate(results):
        assert len(row) == functions.IN_ROW
        for place, (of_branch, of_place, key, pid) in enumerate(row):
            assert (of_branch, of_place) == (branch, place), f"the result of {key} came to call {place} of {branch}"
            assert made[key, pid] == 1, f"process {pid} had the effect of {key} {made[key, pid]} times"
            keys.add(key)
    assert len(keys) == BRANCH_CALLS


def torture_children(
    kind: str,
    kills: int,
    seed: int,
    folder: Path,
    nursery: Nursery,
    *,
    children: int = 50,
    progress: Callable[[Kills], None] = lambda _: None,
) -> Kills:
    """Parents with that many children, one after the other, until there were `kills` kills."""
    figures, chance = Kills(), random.Random(f"{seed}/{kind}")
    while figures.kills < kills:
        arguments, witness = _begin(kind, folder / f"{kind}-{figures.runs}", figures.runs, children=children)
        try:
            most = min(kills, figures.kills + 10)
            result = carry_through(
                nursery, "parenting", arguments, witness, chance, figures, most, starts=children // 2, progress=progress
            )
            check_result("a", result, repr(figures.runs + sum(n * n for n in range(children))))
            _check_family(witness, children)
        except Exception as error:
            raise AssertionError(f"parent {figures.runs}, after {figures.kills} kills: {error}") from error
        figures.runs += 1
        figures.starts += witness.starts
    return figures


def _check_family(witness: Witness, children: int) -> None:
    """Every child is there once, has ended, and has each of its calls once in its log."""
    found = [seen for run, seen in witness.seen.items() if run != "a"]
    assert len(found) == children, f"there are {len(found)} children"
    for seen in found:
        assert seen.head.parent == "a"
        assert seen.head.status == "completed"
        assert sorted(seen.calls) == ["0/act:1", "0/act_in_thread:1"], f"{seen.head.id} has the calls {seen.calls}"
        kinds = Counter(entry.kind for entry in seen.entries.values())
        assert kinds["call"] == 2
        assert kinds["completed"] == kinds["checkpoint"] == kinds["created"] == 1


class Rounds:
    """What it took to go on."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        """How many entries each claim gave."""
        self.lines: list[int] = []
        """How many lines of files were read until then."""
        self.seconds: list[float] = []
        self.starts = 0


def torture_rounds(
    kind: str, seed: int, place: Path, nursery: Nursery, *, total: int, each: int, kills: tuple[int, ...]
) -> Rounds:
    """A run that goes round, killed in these calls of it. Raises AssertionError when something is wrong."""
    figures = Rounds()
    arguments, witness = _begin(kind, place, seed, total=total, each=each)
    child = nursery.start("going_round", **arguments)
    for number in kills:
        while child.wait_for("started")["step"] < number:
            pass
        child.signal(signal.SIGKILL)
        witness.acknowledge(child.finish())
        witness.look()
        begun = time.perf_counter()
        child = nursery.start("going_round", **arguments)
        claimed = child.wait_for("claimed")
        figures.loaded.append(claimed["entries"])
        figures.lines.append(claimed["lines"])
        assert child.wait_for("started")["step"] >= number
        figures.seconds.append(time.perf_counter() - begun)
    result = result_of(child.finish())
    witness.look()
    check_result("a", result, repr({"done": total, "sum": seed + sum(range(total))}))
    figures.starts = witness.starts
    assert total <= witness.starts <= total + len(kills)
    assert max(figures.loaded) <= 2 * each, f"{figures.loaded} entries were loaded to go on"
    assert max(figures.lines) <= 5 * each, f"{figures.lines} lines were read to go on"
    return figures


class Maps(Kills):
    """What happened to a map."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = self.doubled = self.commits = self.usual = 0


def torture_map(
    kind: str, kills: int, seed: int, folder: Path, nursery: Nursery, *, items: int, concurrency: int, in_turn: bool
) -> Maps:
    """A map over so many items, killed so often. Raises AssertionError when something is wrong."""
    figures, expected = Maps(), repr({"seed": seed, "squares": [n * n for n in range(items)]})
    size = {"items": items, "concurrency": concurrency, "in_turn": in_turn}
    arguments, witness = _begin(kind, folder / f"{kind}-undisturbed", seed, **size)
    check_result("a", result_of(nursery.run("mapping", **arguments)), expected)
    witness.look()
    assert set(witness.effects.values()) == {1}
    figures.usual = _noted(arguments)

    arguments, witness = _begin(kind, folder / kind, seed, **size)

    def killed(_: list[Report]) -> None:
        done = witness.seen["a"].calls if "a" in witness.seen else {}
        figures.in_flight += sum(name not in done for _, name in witness.effects)

    chance, starts = random.Random(f"{seed}/{kind}"), items // kills
    result = carry_through(
        nursery, "mapping", arguments, witness, chance, figures, kills, starts=starts, opening=0, killed=killed
    )
    check_result("a", result, expected)
    assert figures.kills == kills, f"it was done after {figures.kills} kills"
    assert len(witness.effects) == items, f"{len(witness.effects)} items had an effect"
    figures.starts, figures.commits, figures.doubled = witness.starts, _noted(arguments), witness.starts - items
    # An item may have been under way at several kills, so those that were under way are counted at each of them.
    assert figures.doubled <= figures.in_flight <= concurrency * kills, (
        f"{figures.doubled} effects were had again, {figures.in_flight} were under way at {kills} kills"
    )
    assert figures.commits <= 1.5 * figures.usual, f"{figures.commits} commits instead of {figures.usual}"
    return figures


def _noted(arguments: dict[str, Any]) -> int:
    """How many commits were noted beside the ledger."""
    return len(Path(f"{arguments['ledger']}.commits").read_text())
