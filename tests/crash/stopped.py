"""Part 4: a worker that is stopped past its lease loses its run, and is told so when it wakes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from . import steps
from .invariants import Witness, check_result
from .nursery import Nursery, result_of
from .stores import url

LEASE = 0.3
STEPS = 6


def torture(kind: str, seed: int, place: Path, sleeper: Nursery, other: Nursery) -> str:
    """One round; what the worker that slept was told. Raises AssertionError when something is wrong."""
    (place / "store").mkdir(parents=True)
    gate = place / "gate"
    os.mkfifo(gate)
    arguments = {"store": url(kind, place / "store"), "run": "run", "seed": seed, "lease": LEASE}
    stopped = sleeper.start("stoppable", **arguments, gate=str(gate))
    stopped.wait_for("waiting")
    stopped.signal(signal.SIGSTOP)
    # The other one waits until the lease has run out: the stopped process still holds its lock.
    result = result_of(other.run("stoppable", **arguments, gate=None))
    check_result("run", result, steps.expected(seed, STEPS))
    names = [steps.name_of(index) for index in range(STEPS)]
    witness = Witness(kind, place / "store", place / "copy", place / "ledger", names=names)
    before = witness.look()["run"]
    stopped.signal(signal.SIGCONT)
    with open(gate, "wb"):
        pass  # its step goes on now, and what it comes to is too late
    refused = stopped.wait_for("refused")
    stopped.finish()
    after = witness.look()["run"]
    assert after.entries == before.entries, "a superseded owner has written"
    assert refused["error"] == "OwnershipLostError"
    assert refused["fence"] < after.head.fence
    assert after.head.status == "completed"
    return str(refused["message"])
