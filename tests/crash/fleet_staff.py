"""The workers of a world: started, killed, stopped for a while, told to leave, and started again.

The first are the command `holdfast worker`, the others runtimes of a program of its own.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servers.postgres_proxy import PostgresProxy

from .fleet_watch import Watch
from .fleet_worker import GRACE, LEASE, name_of
from .nursery import Child, Nursery

COMMANDS = 2
_ENDED_IN = GRACE + 10.0
"""Seconds for a worker that was told to leave: its grace time, and what a busy machine takes to end a process."""
# One that could not reach its store has begun again as another owner.
_LATEST = "select id from {s}.owners where name = %s order by beat_at desc limit 1"


class Staff:
    """One worker for each nursery."""

    def __init__(
        self, nurseries: list[Nursery], arguments: dict[str, Any], chance: random.Random, watch: Watch, place: Path
    ) -> None:
        self._nurseries, self._arguments, self._chance = nurseries, arguments, chance
        self._watch, self._said = watch, place / "said"
        self.workers: list[Child] = []
        self.frozen: list[tuple[float, Child]] = []
        self.stopped: set[int] = set()
        """The processes that were stopped past their lease."""
        self.told_to_leave: set[int] = set()

    def begin(self) -> None:
        """Start all of them."""
        self.workers = [self._start(number) for number in range(len(self._nurseries))]

    def _start(self, number: int) -> Child:
        return self._nurseries[number].start("command" if number < COMMANDS else "fleet", **self._arguments)

    @property
    def names(self) -> list[str]:
        """Of those that live."""
        return [name_of(child.pid) for child in self.workers]

    def kill(self) -> None:
        """End one at once, and start another."""
        self._kill(self._chance.randrange(len(self.workers)))

    def _kill(self, number: int) -> None:
        self.workers[number].signal(signal.SIGKILL)
        self.workers[number].discard()
        self.workers[number] = self._start(number)

    def freeze(self) -> None:
        """Stop one past its lease; `thaw` lets it go on then."""
        child = self._chance.choice(self.workers)
        child.signal(signal.SIGSTOP)
        self.stopped.add(child.pid)
        self.frozen.append((time.monotonic() + LEASE * 1.25, child))

    def thaw(self) -> None:
        """Let those go on whose time has come."""
        for one in [one for one in self.frozen if one[0] < time.monotonic()]:
            self.frozen.remove(one)
            one[1].signal(signal.SIGCONT)

    def leave(self, proxy: PostgresProxy, meanwhile: Callable[[], None]) -> bool:
        """Tell a command to stop: it ends well within its grace time, and signs off: what it had is anybody's at once.

        False when none could be told: SIGTERM ends a command that has not begun yet, as it does any process.
        """
        here = [n for n in range(COMMANDS) if self._has_begun(n)]
        if not here:
            return False
        number = self._chance.choice(here)
        child, cuts = self.workers[number], proxy.done.total()
        mine = [owner for (owner,) in self._watch.rows(_LATEST, (name_of(child.pid),))]
        deadline = time.monotonic() + _ENDED_IN
        child.signal(signal.SIGTERM)
        self.told_to_leave.add(child.pid)
        while _lives(child):
            assert time.monotonic() < deadline, f"a worker was told to leave and is still here after {_ENDED_IN} s"
            meanwhile()
        child.finish()  # raises with what it crashed with
        assert child.status == 0, f"a worker that was told to leave ended with {child.status}"
        if proxy.done.total() == cuts:  # else what it had to say may have been cut off, and its lease runs out
            left = self._watch.rows("select id, name from {s}.owners where id = any (%s)", (mine,))
            assert not left, f"a worker has left, and not signed off: {left}"
        self.workers[number] = self._start(number)
        return True

    def _has_begun(self, number: int) -> bool:
        child = self.workers[number]
        frozen = any(one is child for _, one in self.frozen)
        return not frozen and f"worker {name_of(child.pid)} takes runs" in self._said.read_text()

    def check(self) -> None:
        """Raises AssertionError when one has ended that nobody ended."""
        for child in self.workers:
            if not _lives(child):
                child.finish()  # raises with what it crashed with
                raise AssertionError(f"a worker ended by itself, with status {child.status}")

    def discard(self) -> None:
        """End all of them."""
        for child in self.workers:
            child.discard()


def _lives(child: Child) -> bool:
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        return False
    return True
