"""Part 9: workers on one PostgreSQL server; they are killed, it is stopped, and commits are cut off half-way.

A world is a number of runs in queues, five workers and a list of faults, all from one seed. When it is over, every run
has ended with what it comes to undisturbed, and whatever the workers did can be told from the logs and the ledger.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from servers.postgres import PostgresServer
from servers.postgres_proxy import PostgresProxy

from . import fleet_schema
from .fleet_life import TERMINATED, Life
from .nursery import Nursery

WORKERS = 5


class World:
    """How large it is and what befalls it."""

    def __init__(self, seed: int, *, runs: int, concurrency: int, pace: float, faults: dict[str, int], every: float):
        self.seed, self.runs, self.concurrency, self.pace = seed, runs, concurrency, pace
        self.faults, self.every = faults, every


def small(seed: int) -> World:
    """A round: over in some seconds."""
    faults = {"kill": 4, "stop": 2, "cut": 12, "terminate": 3, "freeze": 1, "leave": 1, "fork": 3}
    return World(seed, runs=25, concurrency=2, pace=0.08, faults=faults, every=0.2)


def tiny(seed: int) -> World:
    """One fault of each kind that a test run has the time for."""
    faults = {"kill": 3, "stop": 1, "cut": 8, "terminate": 2, "freeze": 1, "leave": 1, "fork": 2}
    return World(seed, runs=15, concurrency=2, pace=0.05, faults=faults, every=0.12)


def large(seed: int) -> World:
    """Hundreds of runs, and a kill about every second."""
    faults = {"kill": 60, "stop": 15, "cut": 120, "terminate": 25, "freeze": 6, "leave": 10, "fork": 25}
    return World(seed, runs=500, concurrency=8, pace=0.05, faults=faults, every=0.25)


class Figures:
    """What happened."""

    def __init__(self) -> None:
        self.worlds = self.runs = self.steps = self.effects = self.repeated = self.late = self.most_attempts = 0
        self.read_back = 0
        """Acknowledged entries that were found again right after an outage."""
        self.faults: Counter[str] = Counter()
        self.slowest = self.unclaimed = self.seconds = 0.0
        """After the last fault until all runs had ended, and until one was taken up, at most; all in all."""
        self.cuts: Counter[str] = Counter()

    def __str__(self) -> str:
        faults = self.faults
        return (
            f"{self.runs} runs ({faults['fork']} forks), {faults['kill']} kills, {faults['leave']} told to leave, "
            f"{faults['stop'] + self.worlds} server stops, {faults['freeze']} workers "
            f"stopped past their lease, {faults['terminate'] * TERMINATED} backends ended, {self.cuts.total()} "
            f"requests cut ({self.cuts['commit done']} commits done and their reply lost); {self.steps} effects "
            f"committed, {self.repeated} begun again before (at most {self.most_attempts} times), "
            f"{self.late} by who woke too late; {self.read_back} acknowledged and read back after an outage; "
            f"taken up after at most {self.unclaimed:.1f} s in peace"
        )


class Fleet:
    """A server with a proxy before it, and nurseries for the workers."""

    def __init__(self) -> None:
        self.server = PostgresServer.create(fsync=True)
        try:
            self.whole = fleet_schema.undisturbed(self.server)
            self.proxy = PostgresProxy(self.server.port).__enter__()
            first = Nursery()
            self.nurseries = [first, *(Nursery(first) for _ in range(WORKERS - 1))]
        except BaseException:
            self.server.remove()
            raise

    def close(self) -> None:
        """End all of it, and remove what the server holds."""
        for nursery in self.nurseries:
            nursery.close()
        self.proxy.__exit__()
        self.server.remove()

    def torture(self, world: World, place: Path, figures: Figures) -> None:
        """One world, from its first run to its last. Raises AssertionError."""
        begun = time.perf_counter()
        with self.server.schema() as schema:
            before = self.proxy.done.copy()
            life = Life(self, world, schema, place, figures)
            try:
                life.live()
            finally:
                life.watch.close()
        for (kind, moment), times in (self.proxy.done - before).items():
            figures.cuts["commit done" if (kind, moment) == ("writer", "after") else f"{kind} {moment}"] += times
        figures.worlds += 1
        figures.seconds += time.perf_counter() - begun


def rounds(fleet: Fleet, seeds: range, folder: Path, figures: Figures, progress: Callable[[Figures], None]) -> None:
    """A small world for each seed."""
    for seed in seeds:
        try:
            fleet.torture(small(seed), folder / str(seed), figures)
        except Exception as error:
            raise AssertionError(f"world of seed {seed}: {error}") from error
        progress(figures)
