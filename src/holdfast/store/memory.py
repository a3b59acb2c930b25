"""A store in memory: for tests, and for running without persistence."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.clock import Clock, SystemClock
from holdfast.core.query import Mailed, claimable, select
from holdfast.core.record import RunRecord, is_empty, refusal
from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Reply, RunStatus
from holdfast.store.base import Store
from holdfast.store.changes import Changes

_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
_FORGOTTEN_AFTER = 3600.0  # seconds that a dead owner stays in the list of owners


class MemoryStore(Store):
    """The whole contract, held by this object alone. Safe to use from any thread and event loop.

    With keep=False a run is forgotten as soon as a commit gives it an end status, and one that has a parent
    with its parent, which may still ask for its result.
    """

    capabilities = frozenset({"inline"})
    most_together = 1 << 30

    def __init__(self, clock: Clock | None = None, keep: bool = True) -> None:
        self._clock = clock or SystemClock()
        self._keep = keep
        self._lock = threading.RLock()
        self._runs: dict[str, RunRecord] = {}
        self._owners: dict[str, tuple[Owner, float]] = {}  # with the end of the lease
        self._changes = Changes()

    async def open(self) -> None:
        """Nothing is to be done."""

    async def close(self) -> None:
        """Nothing is let go of: the runs live as long as this object."""

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        return self.try_commit(batch)

    def try_commit(self, batch: Sequence[Commit], introducing: tuple[Owner, float] | None = None) -> list[Reply]:
        with self._lock:
            replies = [self._write(commit) for commit in batch]
            if introducing is not None and any(reply.refused is None for reply in replies):
                self.beat(*introducing)
        # An empty commit only asks. If it counted as a change, two runtimes that ask whenever something
        # changed would keep each other awake for ever.
        if any(reply.refused is None and not is_empty(commit) for reply, commit in zip(replies, batch, strict=True)):
            self._changes.note()
        return replies

    def _write(self, commit: Commit) -> Reply:
        record = self._runs.get(commit.run)
        if refused := refusal(record, commit):
            return Reply(refused)
        if record is None:
            record = self._runs[commit.run] = RunRecord.create(commit)
        else:
            record.apply(commit)
        if not self._keep and record.head.status in _ENDED:
            self._forget(record.head)
        return Reply(None, tuple(record.inbox))

    def _forget(self, head: Head) -> None:
        above = self._runs.get(head.parent) if head.parent is not None else None
        if above is not None and above.head.status not in _ENDED:
            return
        del self._runs[head.id]
        below = [record.head for record in self._runs.values() if record.head.parent == head.id]
        for child in below:
            if child.status in _ENDED:
                self._forget(child)

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        with self._lock:
            claims = [self._runs[head.id].claim(owner) for head in claimable(self._heads(query), query, owner)]
            claims = [replace(claim, head=self._seen(claim.head)) for claim in claims]
        if claims:
            self._changes.note()
        return claims

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        with self._lock:
            found = [self._runs.get(run) for run in ids]
            return [self._seen(record.head) if record else None for record in found]

    async def list_heads(self, query: Query) -> list[Head]:
        with self._lock:
            return select(self._heads(query), query)

    async def read_entries(
        self, run: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        with self._lock:
            record = self._runs.get(run)
            return record.read(after, upto, limit) if record else []

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        with self._lock:
            if (record := self._runs.get(run)) is None:
                return Posted.NO_RUN
            stamped = record.stamp(mail, self._clock.now())
            if isinstance(stamped, Posted):
                return stamped
            record.receive(stamped)
        self._changes.note()
        return Posted.ACCEPTED

    async def delete_run(self, run: str) -> bool:
        with self._lock:
            record = self._runs.get(run)
            if record is None or self._seen(record.head).owned:
                return False
            del self._runs[run]
        self._changes.note()
        return True

    def beat(self, owner: Owner, lease: float) -> None:
        with self._lock:
            now = self._clock.now()
            if owner.id not in self._owners:
                self._owners = {k: v for k, v in self._owners.items() if v[1] + _FORGOTTEN_AFTER > now}
            self._owners[owner.id] = (replace(owner, beat_at=now), now + lease)

    async def retire_owner(self, owner: str) -> None:
        with self._lock:
            self._owners.pop(owner, None)
        self._changes.note()

    async def list_owners(self) -> list[Owner]:
        with self._lock:
            return [replace(owner, alive=self._alive(owner.id)) for owner, _ in self._owners.values()]

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        return await self._changes.wait(seen, timeout)

    async def inspect(self) -> list[tuple[str | None, str]]:
        return []

    def _alive(self, owner: str) -> bool:
        return owner in self._owners and self._owners[owner][1] > self._clock.now()

    def _seen(self, head: Head) -> Head:
        return replace(head, owned=True) if head.owner is not None and self._alive(head.owner) else head

    def _heads(self, query: Query) -> Iterator[Mailed]:
        everybody = query.ids is None or query.in_turn
        runs = self._runs if everybody or query.ids is None else [run for run in set(query.ids) if run in self._runs]
        return ((self._seen(self._runs[run].head), self._runs[run].inbox) for run in runs)
