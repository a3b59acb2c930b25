"""The program of a worker in a fleet under torture."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import holdfast.store.postgres  # noqa: F401  # imported before the fork, once for all workers
from holdfast.errors import StoreUnavailableError

from . import fleet_flows
from .opening import on_event, open_runtime, set_up
from .steps import Reporter

LEASE = 2.0


def work(report: Reporter, *, store: str, ledger: str, acknowledged: str, concurrency: int, pace: float) -> None:
    """The program of a worker: it serves all queues until it is killed."""
    file = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(what: str, **fields: Any) -> None:
        if what == "acknowledged":
            os.write(file, f"{fields['run']} {fields['seq']}\n".encode())

    set_up(tell, ledger)
    fleet_flows.Pace.seconds = pace

    async def main() -> None:
        rt = open_runtime(
            store,
            recover=True,
            lease=LEASE,
            heartbeat=LEASE / 4,
            concurrency=concurrency,
            crash_limit=10,
            name=f"worker-{os.getpid()}",
            on_event=on_event,
        )
        rt.register(*fleet_flows.FLOWS)
        while True:
            try:
                await rt.__aenter__()
                break
            except StoreUnavailableError:  # whoever starts workers does so again when one cannot reach its store
                await asyncio.sleep(0.1)
        report("ready")
        await asyncio.Event().wait()

    asyncio.run(main())
