"""Part 4: a worker that is stopped past its lease loses its run, and is told so when it wakes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Literal

from . import steps
from .invariants import Witness, check_result
from .nursery import Child, Nursery, result_of
from .stores import url

LEASE, LEASE_OVER_NETWORK = 0.3, 1.0
STEPS = 6

Moment = Literal["while the other works", "when the other has finished"]
MOMENTS: tuple[Moment, ...] = ("while the other works", "when the other has finished")


def torture(
    kind: str,
    seed: int,
    place: Path,
    sleeper: Nursery,
    worker: Nursery,
    moment: Moment,
    *,
    served: str | None = None,
) -> str:
    """One round; what the worker that slept was told. Raises AssertionError when something is wrong.

    `served` is the URL of the store where a server keeps it.

    While the other one works on the very step that the sleeper was at, the place in the log is still
    free: only the fence stands between the late write and the log.
    """
    (place / "store").mkdir(parents=True)
    gates = [place / "gate-of-sleeper", place / "gate-of-other"]
    for gate in gates:
        os.mkfifo(gate)
    store, lease = (served, LEASE_OVER_NETWORK) if served else (url(kind, place / "store"), LEASE)
    arguments = {"store": store, "run": "run", "seed": seed, "lease": lease}
    asleep = sleeper.start("stoppable", **arguments, gate=str(gates[0]))
    asleep.wait_for("waiting")
    asleep.signal(signal.SIGSTOP)
    # The other one waits until the lease has run out: the stopped process still holds its lock, where there is one.
    other = worker.start("stoppable", **arguments, gate=str(gates[1]))
    other.wait_for("waiting")
    names = [steps.name_of(index) for index in range(STEPS)]
    witness = Witness(kind, place / "store", place / "copy", place / "ledger", names=names, served=served)
    witness.owner_lives = True
    if moment == "when the other has finished":
        _finish(other, gates[1], seed)
    before = witness.look()["run"]
    told = _wake(asleep, gates[0])
    after = witness.look()["run"]
    assert after.entries == before.entries, "a superseded owner has written"
    assert told["fence"] < after.head.fence
    if moment == "while the other works":
        _finish(other, gates[1], seed)
    assert witness.look()["run"].head.status == "completed"
    return str(told["message"])


def _wake(asleep: Child, gate: Path) -> dict[str, object]:
    asleep.signal(signal.SIGCONT)
    _open(gate)  # its step goes on now, and what it comes to is too late
    told = asleep.wait_for("refused")
    asleep.finish()
    assert told["error"] == "OwnershipLostError"
    return told


def _finish(other: Child, gate: Path, seed: int) -> None:
    _open(gate)
    check_result("run", result_of(other.finish()), steps.expected(seed, STEPS))


def _open(gate: Path) -> None:
    with open(gate, "wb"):
        pass
