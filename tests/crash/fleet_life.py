"""One world while it lives: opened by all at once, disturbed, left in peace, and looked at."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from holdfast import Runtime
from holdfast.errors import RunExistsError, StoreUnavailableError
from servers.postgres_proxy import MOMENTS

from . import fleet_flows, fleet_found, fleet_schema
from .fleet_acks import Acknowledged
from .fleet_bounds import check_bounds
from .fleet_claimable import Claimable
from .fleet_flows import Start
from .fleet_forks import Forks
from .fleet_guard import check_untouched
from .fleet_staff import Staff
from .fleet_watch import Watch
from .fleet_worker import LEASE, acknowledge
from .steps import Reporter

if TYPE_CHECKING:
    from .fleet import Figures, Fleet, World

TERMINATED = 3
PATIENCE = 60.0
"""Seconds for all runs to end, once nothing is disturbed any more."""


class Life:
    """Everything that belongs to one world."""

    def __init__(self, fleet: Fleet, world: World, schema: str, place: Path, figures: Figures) -> None:
        self._fleet, self._world, self._place, self._figures = fleet, world, place, figures
        self._server, self._proxy, self._schema = fleet.server, fleet.proxy, schema
        self._chance = random.Random(f"fleet/{world.seed}")
        self._starts = fleet_flows.starts(world.runs, self._chance)
        self._url = self._server.url(schema)
        through = self._server.url(schema, port=self._proxy.port)
        arguments = {"store": through, "place": str(place), "concurrency": world.concurrency, "pace": world.pace}
        (place / "home").mkdir(parents=True)
        self.watch = Watch(self._server, schema)
        self._staff = Staff(fleet.nurseries, arguments, self._chance, self.watch, place)
        self._forks = Forks(through, self.watch, self._chance)
        self._acknowledged = Acknowledged(place, self._url, self.watch)

    def live(self) -> None:
        """Start everything, disturb it, and look at what became of it."""
        expected = asyncio.run(fleet_found.undisturbed(self._starts))
        try:
            self._open()
            with self._starting():
                self._disturb()
            self._proxy.cancel()
            self._wait_for_the_end()
            check_bounds(self.watch, self._staff.workers)
            self._staff.check()
        finally:
            self._staff.discard()
            self._proxy.cancel()
        self._check(expected)

    def _open(self) -> None:
        """All workers open a store that is not there yet; connections are cut meanwhile, and the server is stopped."""
        with fleet_schema.looked_at(self._server, self._schema, self._fleet.whole):
            for _ in range(3):
                self._proxy.cut("other", self._chance.choice(MOMENTS), skip=self._chance.randrange(12))
            self._staff.begin()
            time.sleep(self._chance.uniform(0, 0.1))
            self._server.stop("immediate")
            self._server.start()
            while True:
                with suppress(StoreUnavailableError):
                    fleet_schema.open_once(self._url)
                    break
        self.watch.install()

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Runs are started meanwhile, by somebody whom outages hit as well."""
        failed: list[BaseException] = []

        def start() -> None:
            try:
                asyncio.run(_start_all(self._url, self._starts, acknowledge(self._place)))
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
        todo.remove("kill")
        for what in (*todo, "kill"):  # at last, so that there is a dead one's work to be taken up in peace
            self._look_for(self._chance.uniform(0, 2 * self._world.every))
            self._staff.check()
            if getattr(self, f"_{what}")() is not False:
                self._figures.faults[what] += 1
            if self._all_ended():
                return

    def _look_for(self, seconds: float) -> None:
        """See what readers see, for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.watch.look(self._chance)
            self._staff.thaw()
            time.sleep(min(left, 0.05))

    def _kill(self) -> None:
        self._staff.kill()

    def _freeze(self) -> None:
        self._staff.freeze()

    def _leave(self) -> bool:
        return self._staff.leave(self._proxy, lambda: self._look_for(0.02))

    def _fork(self) -> None:
        self._forks.make()

    def _stop(self) -> None:
        self._server.stop("immediate")
        time.sleep(self._chance.choice((0.0, 0.1, 0.3, LEASE / 2)))
        self._server.start()
        self._figures.read_back += self._acknowledged.check(self._chance, self._forks.deleted)

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

    # The end

    def _all_ended(self) -> bool:
        return self.watch.all_ended(len(self._starts) + self._forks.living)

    def _wait_for_the_end(self) -> None:
        begun, claimable = time.monotonic(), Claimable(self.watch, self._world.concurrency)
        while not self._all_ended():
            self._staff.check()
            if time.monotonic() - begun > PATIENCE:
                raise AssertionError(f"still under way after {PATIENCE:.0f} s in peace: {self.watch.left()}")
            if not self._staff.frozen:
                claimable.look(self._staff.names)
            self._look_for(0.05)
        self._figures.slowest = max(self._figures.slowest, time.monotonic() - begun)
        self._figures.unclaimed = max(self._figures.unclaimed, claimable.longest)

    def _check(self, expected: list[fleet_found.Outcome]) -> None:
        self._acknowledged.check(self._chance, self._forks.deleted)
        found = fleet_found.Found(
            self._place / "ledger", self.watch, self._acknowledged.entries, self._forks, self._staff
        )
        asyncio.run(found.check(self._url, expected))
        fleet_schema.check_schema(self._server, self._schema, self._fleet.whole)
        check_untouched(self._place)
        self._figures.runs += len(expected) + self._forks.living
        self._figures.steps += found.committed
        self._figures.effects += found.effects
        self._figures.repeated += found.repeated
        self._figures.late += found.late
        self._figures.most_attempts = max(self._figures.most_attempts, found.most_attempts)


async def _start_all(url: str, starts: list[Start], tell: Reporter) -> None:
    """An id that was handed out is a run that exists; one of which that is not known is tried again."""
    while True:
        try:
            async with Runtime(url) as rt:
                for one in starts:
                    with suppress(RunExistsError):
                        await rt.start(one.flow, one.input, id=one.id, **one.placing)
                    tell("acknowledged", run=one.id, seq=1, type="created")
            return
        except StoreUnavailableError:
            await asyncio.sleep(0.1)
