"""Part 9: workers on one PostgreSQL server; they are killed, it is stopped, and commits are cut off half-way.

A world is a number of runs in queues, five workers and a list of faults, all from one seed. When it is over, every run
has ended with what it comes to undisturbed, and whatever the workers did can be told from the logs and the ledger.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from holdfast import Runtime
from holdfast.errors import RunExistsError, StoreUnavailableError
from servers.postgres import PostgresServer
from servers.postgres_proxy import MOMENTS, PostgresProxy

from . import fleet_flows, fleet_watch
from .fleet_flows import Start
from .fleet_worker import LEASE
from .nursery import Child, Nursery

WORKERS = 5
TERMINATED = 3
PATIENCE = 60.0
"""Seconds for all runs to end, once nothing is disturbed any more; two leases are promised for each to be taken up."""


class World:
    """How large it is and what befalls it."""

    def __init__(self, seed: int, *, runs: int, concurrency: int, pace: float, faults: dict[str, int], every: float):
        self.seed, self.runs, self.concurrency, self.pace = seed, runs, concurrency, pace
        self.faults, self.every = faults, every


def small(seed: int) -> World:
    """A round: over in some seconds."""
    faults = {"kill": 4, "stop": 2, "cut": 12, "terminate": 3, "freeze": 1}
    return World(seed, runs=25, concurrency=2, pace=0.08, faults=faults, every=0.2)


def tiny(seed: int) -> World:
    """One fault of each kind that a test run has the time for."""
    faults = {"kill": 3, "stop": 1, "cut": 8, "terminate": 2, "freeze": 1}
    return World(seed, runs=15, concurrency=2, pace=0.05, faults=faults, every=0.12)


def large(seed: int) -> World:
    """Hundreds of runs, and a kill about every second."""
    faults = {"kill": 60, "stop": 15, "cut": 120, "terminate": 25, "freeze": 6}
    return World(seed, runs=500, concurrency=8, pace=0.05, faults=faults, every=0.25)


class Figures:
    """What happened."""

    def __init__(self) -> None:
        self.worlds = self.runs = self.steps = self.effects = self.repeated = self.late = self.most_attempts = 0
        self.faults: Counter[str] = Counter()
        self.slowest = self.seconds = 0.0
        """Until all runs had ended after the last fault, at most; all in all."""
        self.cuts: Counter[str] = Counter()

    def __str__(self) -> str:
        faults = self.faults
        return (
            f"{self.runs} runs, {faults['kill']} kills, {faults['stop']} server stops, {faults['freeze']} workers "
            f"stopped past their lease, {faults['terminate'] * TERMINATED} backends ended, {self.cuts.total()} "
            f"requests cut ({self.cuts['commit done']} commits done and their reply lost); {self.steps} effects "
            f"committed, {self.repeated} begun again before (at most {self.most_attempts} times), "
            f"{self.late} by who woke too late"
        )


class Fleet:
    """A server with a proxy before it, and nurseries for the workers."""

    def __init__(self) -> None:
        self.server = PostgresServer.create(fsync=True)
        try:
            self.proxy = PostgresProxy(self.server.port).__enter__()
            self.nurseries = [Nursery() for _ in range(WORKERS)]
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
        place.mkdir(parents=True)
        with self.server.schema() as schema:
            before = self.proxy.done.copy()
            life = _Life(self, world, schema, place, figures)
            try:
                life.live()
            finally:
                life.watch.close()
        for (kind, moment), times in (self.proxy.done - before).items():
            figures.cuts["commit done" if (kind, moment) == ("writer", "after") else f"{kind} {moment}"] += times
        figures.worlds += 1
        figures.seconds += time.perf_counter() - begun


class _Life:
    """One world while it lives."""

    def __init__(self, fleet: Fleet, world: World, schema: str, place: Path, figures: Figures) -> None:
        self._fleet, self._world, self._place, self._figures = fleet, world, place, figures
        self._server, self._proxy = fleet.server, fleet.proxy
        self._chance = random.Random(f"fleet/{world.seed}")
        self._starts = fleet_flows.starts(world.runs, self._chance)
        self._url, self._schema = self._server.url(schema), schema
        self._arguments = {
            "store": self._server.url(schema, port=self._proxy.port),
            "ledger": str(place / "ledger"),
            "acknowledged": str(place / "acknowledged"),
            "concurrency": world.concurrency,
            "pace": world.pace,
        }
        self._workers: list[Child] = []
        self._frozen: list[tuple[float, Child]] = []
        self._stopped: set[int] = set()
        self.watch = fleet_watch.Watch(self._server, schema)

    def live(self) -> None:
        """Start everything, disturb it, and look at what became of it."""
        expected = asyncio.run(fleet_watch.undisturbed(self._starts))
        asyncio.run(_make(self._url))
        self.watch.install()
        self._workers = [nursery.start("fleet", **self._arguments) for nursery in self._fleet.nurseries]
        try:
            with self._starting():
                self._disturb()
            self._proxy.cancel()
            last_fault = time.monotonic()
            self._wait_for_the_end(last_fault)
            self._figures.slowest = max(self._figures.slowest, time.monotonic() - last_fault)
            self._check_workers()
        finally:
            for child in self._workers:
                child.discard()
        self._proxy.cancel()
        found = fleet_watch.Found(self._place / "ledger", self._place / "acknowledged", self.watch, self._stopped)
        asyncio.run(found.check(self._url, expected))
        self._figures.runs += len(expected)
        self._figures.steps += found.committed
        self._figures.effects += found.effects
        self._figures.repeated += found.repeated
        self._figures.late += found.late
        self._figures.most_attempts = max(self._figures.most_attempts, found.most_attempts)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Runs are started meanwhile, by somebody whom outages hit as well."""
        failed: list[BaseException] = []

        def start() -> None:
            try:
                asyncio.run(_start_all(self._url, self._starts))
            except BaseException as error:
                failed.append(error)

        starter = threading.Thread(target=start)
        starter.start()
        try:
            yield
        finally:
            starter.join()
        if failed:
            raise failed[0]

    # Faults

    def _disturb(self) -> None:
        todo = [what for what, times in self._world.faults.items() for _ in range(times)]
        self._chance.shuffle(todo)
        for what in todo:
            pause = self._chance.uniform(0, 2 * self._world.every)
            self._look_for(pause)
            self._check_workers()
            getattr(self, f"_{what}")()
            self._figures.faults[what] += 1
            if self.watch.all_ended(len(self._starts)):
                return

    def _look_for(self, seconds: float) -> None:
        """See what readers see, for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.watch.look(self._chance)
            for frozen in [one for one in self._frozen if one[0] < time.monotonic()]:
                self._frozen.remove(frozen)
                frozen[1].signal(signal.SIGCONT)
            time.sleep(min(left, 0.05))

    def _kill(self) -> None:
        number = self._chance.randrange(WORKERS)
        self._workers[number].signal(signal.SIGKILL)
        self._workers[number].discard()
        self._workers[number] = self._fleet.nurseries[number].start("fleet", **self._arguments)

    def _stop(self) -> None:
        self._server.stop("immediate")
        time.sleep(self._chance.choice((0.0, 0.1, 0.3, LEASE / 2)))
        self._server.start()

    def _cut(self) -> None:
        kind = self._chance.choice(("writer", "writer", "writer", "other", "other", "heart"))
        moment = self._chance.choice(MOMENTS)
        self._proxy.cut(kind, moment, skip=self._chance.randrange(8))  # type: ignore[arg-type]

    def _terminate(self) -> None:
        with suppress(psycopg.Error), self._server.connect() as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' "
                f"and pid <> pg_backend_pid() order by random() limit {TERMINATED}"
            )

    def _freeze(self) -> None:
        """Stop a worker past its lease, and let it go on then."""
        child = self._chance.choice(self._workers)
        child.signal(signal.SIGSTOP)
        self._stopped.add(child.pid)
        self._frozen.append((time.monotonic() + LEASE * 1.25, child))

    # The end

    def _wait_for_the_end(self, since: float) -> None:
        while not self.watch.all_ended(len(self._starts)):
            self._check_workers()
            if time.monotonic() - since > PATIENCE:
                raise AssertionError(f"still under way after {PATIENCE:.0f} s in peace: {self.watch.left()}")
            self._look_for(0.05)

    def _check_workers(self) -> None:
        for child in self._workers:
            try:
                os.kill(child.pid, 0)
            except ProcessLookupError:
                child.finish()  # raises with what it crashed with
                raise AssertionError(f"a worker ended by itself, with status {child.status}") from None


async def _make(url: str) -> None:
    async with Runtime(url):
        pass


async def _start_all(url: str, starts: list[Start]) -> None:
    """An id that was handed out is a run that exists; one of which that is not known is tried again."""
    while True:
        try:
            async with Runtime(url) as rt:
                for one in starts:
                    await _start(rt, one)
            return
        except StoreUnavailableError:
            await asyncio.sleep(0.1)


async def _start(rt: Runtime, one: Start) -> None:
    with suppress(RunExistsError):
        await rt.start(one.flow, one.input, id=one.id, **one.placing)


def rounds(fleet: Fleet, seeds: range, folder: Path, figures: Figures, progress: Callable[[Figures], None]) -> None:
    """A small world for each seed."""
    for seed in seeds:
        try:
            fleet.torture(small(seed), folder / str(seed), figures)
        except Exception as error:
            raise AssertionError(f"world of seed {seed}: {error}") from error
        progress(figures)
