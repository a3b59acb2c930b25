"""Forks of runs, made at any moment: their sources stay as they are to the byte, and they come to the same end."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

from holdfast import Runtime
from holdfast.errors import RunExistsError, StoreUnavailableError

from .fleet_flows import line
from .fleet_watch import Watch

_POINTS = """
    select r.id, e.seq from {s}.runs r join {s}.entries e on e.n = r.n
    where r.parent is null and r.id not like 'fork%%' and e.kind in ('created', 'checkpoint') order by r.id, e.seq
"""
_LOG = """
    select e.* from {s}.runs r join {s}.entries e on e.n = r.n where r.id = %s and e.seq <= %s order by e.seq
"""


class Fork(NamedTuple):
    """A run that began as another one's checkpoint."""

    id: str
    source: str
    seq: int
    log: list[tuple[Any, ...]]
    """The source's, up to there, as it was before."""


class Forks:
    """Those of one world."""

    def __init__(self, url: str, watch: Watch, chance: random.Random) -> None:
        self._url, self._watch, self._chance = url, watch, chance
        self.made: dict[str, Fork] = {}
        self.deleted: set[str] = set()

    @property
    def living(self) -> int:
        """How many there must be."""
        return len(self.made) - len(self.deleted)

    def make(self) -> None:
        """Fork some run at some checkpoint, and leave the new one to the workers; delete an older one at times."""
        points = self._watch.rows(_POINTS)
        if points:
            source, seq = self._chance.choice(points)
            log = self._watch.rows(_LOG, (source, seq))
            fork = Fork(f"fork-{len(self.made)}-of-{source}", source, seq, log)
            asyncio.run(self._make(fork))
            self.made[fork.id] = fork
            self._check_source(fork)
        for fork in list(self.made.values()):
            if fork.source.startswith(line.name) and fork.id not in self.deleted and self._has_ended(fork):
                asyncio.run(self._delete(fork))
                self.deleted.add(fork.id)

    async def _make(self, fork: Fork) -> None:
        while True:
            try:
                async with Runtime(self._url) as rt:
                    made = await rt.fork(f"{fork.source}@{fork.seq}", id=fork.id)
                    assert made.id == fork.id
            except StoreUnavailableError:
                await asyncio.sleep(0.05)
            except RunExistsError:  # it was made, and the reply was lost
                return
            else:
                return

    async def _delete(self, fork: Fork) -> None:
        while True:
            try:
                async with Runtime(self._url) as rt:
                    await rt.delete(fork.id)
                return
            except StoreUnavailableError:
                await asyncio.sleep(0.05)

    def _has_ended(self, fork: Fork) -> bool:
        return self._watch.rows("select status from {s}.runs where id = %s", (fork.id,)) == [("completed",)]

    def _check_source(self, fork: Fork) -> None:
        now = self._watch.rows(_LOG, (fork.source, fork.seq))
        assert now == fork.log, f"run {fork.source} is another one up to {fork.seq} since it was forked"

    async def check(self, rt: Runtime, results: dict[str, str]) -> None:
        """At the end: every source is as it was, every fork began with its state and ended as it did."""
        for fork in self.made.values():
            self._check_source(fork)
            if fork.id not in self.deleted:
                begun, there = await rt.load(f"{fork.id}@1"), await rt.load(f"{fork.source}@{fork.seq}")
                assert begun is not None
                assert there is not None
                assert repr(begun.state) == repr(there.state), f"{fork.id} began with another state than its source had"
                assert begun.parent == there.id, f"{fork.id} says that it comes from {begun.parent}"
                assert results[fork.id] == results[fork.source], f"{fork.id} came to another end than its source"
