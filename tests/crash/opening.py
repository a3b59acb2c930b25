"""How the programs that children run open a store, and where they report to."""

from __future__ import annotations

import logging
from typing import Any

from holdfast import Event, Runtime
from holdfast.engine import waits

from .steps import Outside, Reporter


def on_event(event: Event) -> None:
    """Report what is durable."""
    if event.type in ("checkpointed", "created", "completed", "paused", "rewound", "resumed") and event.seq is not None:
        Outside.report("acknowledged", run=event.run, seq=event.seq, type=event.type)


def set_up(report: Reporter, ledger: str | None) -> None:
    """What steps and calls do is told there."""
    Outside.report, Outside.ledger = report, ledger
    for name in ("holdfast", "psycopg"):
        logging.getLogger(name).addHandler(logging.NullHandler())  # what counts is reported


def let_go_at_once() -> None:
    """A run that only waits is let go at once, whatever is due soon."""
    waits.STILL_FOR, waits.MOMENTS = 0.01, 0.02


def open_runtime(store: Any, **settings: Any) -> Runtime:
    """A runtime for a process that is to be killed."""
    let_go_at_once()
    # Nobody may wait for a lease here: a dead owner on this machine is recognised at once.
    given = {"lease": 3600.0, "heartbeat": 3000.0, "crash_limit": 100_000, "on_event": on_event, "grace": 0.0}
    return Runtime(store, **(given | settings))
