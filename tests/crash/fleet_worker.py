"""The programs of workers in a fleet under torture: a runtime of one's own, and the command."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import holdfast.store.postgres  # noqa: F401  # imported before the fork, once for all workers
from holdfast.cli.app import execute
from holdfast.cli.codes import Exit
from holdfast.errors import StoreUnavailableError

from . import fleet_flows
from .fleet_guard import guard
from .opening import let_go_at_once, on_event, open_runtime, set_up
from .steps import Reporter

LEASE = 2.0
GRACE = 1.0
"""Seconds that a worker which is told to stop has for its steps; each takes a tenth of that at most."""


def acknowledge(place: Path) -> Reporter:
    """Writes down what is durable, for all to read, a line at a time."""
    file = os.open(place / "acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(what: str, **fields: Any) -> None:
        if what == "acknowledged":
            os.write(file, f"{fields['run']} {fields['seq']} {fields['type']}\n".encode())

    return tell


def _begin(report: Reporter, place: Path, pace: float, tell: Reporter) -> None:
    set_up(tell, str(place / "ledger"))
    fleet_flows.Pace.seconds = pace
    guard(place)
    report("begun", descriptors=len(os.listdir("/proc/self/fd")))


def work(report: Reporter, *, store: str, place: str, concurrency: int, pace: float) -> None:
    """The program of a worker: it serves all queues until it is killed."""
    _begin(report, Path(place), pace, acknowledge(Path(place)))

    async def main() -> None:
        rt = open_runtime(
            store,
            recover=True,
            lease=LEASE,
            heartbeat=LEASE / 4,
            concurrency=concurrency,
            crash_limit=10,
            name=name_of(os.getpid()),
            on_event=on_event,
        )
        rt.register(*fleet_flows.FLOWS)
        while True:
            try:
                await rt.__aenter__()
                break
            except StoreUnavailableError:  # whoever starts workers does so again when one cannot reach its store
                await asyncio.sleep(0.1)
        await asyncio.Event().wait()

    asyncio.run(main())


def command(report: Reporter, *, store: str, place: str, concurrency: int, pace: float) -> None:
    """`holdfast worker`, begun again when it cannot reach its store; what it says of its runs is kept."""
    said = os.open(f"{place}/said", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(said, 2)
    let_go_at_once()
    _begin(report, Path(place), pace, lambda what, **fields: None)
    options = {"store": store, "concurrency": concurrency, "lease": LEASE, "grace": GRACE, "name": name_of(os.getpid())}
    typed = [text for option, value in options.items() for text in (f"--{option}", str(value))]
    while (code := execute(["worker", fleet_flows.__name__, *typed])) == Exit.STORE:
        time.sleep(0.1)
    assert code == Exit.OK, f"the command ended with {code!r}"


def name_of(pid: int) -> str:
    """What the store calls the worker in that process."""
    return f"worker-{pid}"
