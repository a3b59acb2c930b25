"""Your own store: Holdfast on a task table that you have already.

The table can do four things: save, get, list and delete a task. That is enough for a full store, since
`holdfast.core.record` knows the rules. One task holds one run, so saving it is one atomic write.

    python examples/own_store.py

`StoreContract` in `holdfast.testing` tells whether a store keeps every promise; it is how this one is tested.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from holdfast import Pipeline, Runtime
from holdfast.clock import Clock, SystemClock
from holdfast.core.query import Mailed, claimable, select
from holdfast.core.record import RunRecord, is_empty, refusal
from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Reply
from holdfast.store.base import Store
from holdfast.store.changes import Changes


@dataclass(frozen=True)
class TaskRecord:
    """A row of the table."""

    id: str
    status: str
    progress: float
    data: bytes
    metadata: dict[str, str]


class TaskTable(Protocol):
    """What you have already. Each call is atomic, and durable when it returns."""

    async def save_task(self, task: TaskRecord) -> None: ...
    async def get_task(self, task_id: str) -> TaskRecord | None: ...
    async def list_tasks(self) -> list[TaskRecord]: ...
    async def delete_task(self, task_id: str) -> None: ...


class TaskStore(Store):
    """Runs as tasks of a table, for one process: the table cannot compare and swap, so it is not `shared`."""

    capabilities = frozenset({"durable"})

    def __init__(self, table: TaskTable, clock: Clock | None = None) -> None:
        self._table = table
        self._clock = clock or SystemClock()
        self._one_at_a_time = asyncio.Lock()
        self._leases: dict[str, tuple[Owner, float]] = {}  # nobody else has this table: no need to store them
        self._leases_lock = threading.Lock()  # heartbeats come from a thread of their own
        self._changes = Changes()

    async def open(self) -> None:
        """The table is there already."""

    async def close(self) -> None:
        """The table stays open."""

    async def _load(self, run: str) -> RunRecord | None:
        task = await self._table.get_task(run)
        return msgspec.json.decode(task.data, type=RunRecord) if task else None

    async def _save(self, record: RunRecord) -> None:
        head = record.head
        progress = 100.0 if head.status == "completed" else 0.0
        task = TaskRecord(head.id, head.status, progress, msgspec.json.encode(record), {"flow": head.flow})
        await self._table.save_task(task)
        self._changes.note()

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        async with self._one_at_a_time:
            return [await self._commit(commit) for commit in batch]

    async def _commit(self, commit: Commit) -> Reply:
        record = await self._load(commit.run)
        if refused := refusal(record, commit):
            return Reply(refused)
        if record is None:
            record = RunRecord.create(commit)
        else:
            record.apply(commit)
        if not is_empty(commit):
            await self._save(record)
        return Reply(None, tuple(record.inbox))

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        claims = []
        async with self._one_at_a_time:
            records = await self._all()
            for head in claimable(self._heads(records), query, owner):
                record = records[head.id]
                claim = record.claim(owner)
                await self._save(record)
                claims.append(replace(claim, head=self._seen(claim.head)))
        return claims

    async def _all(self) -> dict[str, RunRecord]:
        found = [msgspec.json.decode(task.data, type=RunRecord) for task in await self._table.list_tasks()]
        return {record.head.id: record for record in found}

    def _heads(self, records: dict[str, RunRecord]) -> list[Mailed]:
        """Each head with its mail: what the rules of claims and lists are applied to."""
        return [(self._seen(record.head), record.inbox) for record in records.values()]

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        records = [await self._load(run) for run in ids]
        return [self._seen(record.head) if record else None for record in records]

    async def list_heads(self, query: Query) -> list[Head]:
        return select(self._heads(await self._all()), query)

    async def read_entries(
        self, run: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        record = await self._load(run)
        return record.read(after, upto, limit) if record else []

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        async with self._one_at_a_time:
            if (record := await self._load(run)) is None:
                return Posted.NO_RUN
            stamped = record.stamp(mail, self._clock.now())
            if isinstance(stamped, Posted):
                return stamped
            record.receive(stamped)
            await self._save(record)
            return Posted.ACCEPTED

    async def delete_run(self, run: str) -> bool:
        async with self._one_at_a_time:
            record = await self._load(run)
            if record is None or self._seen(record.head).owned:
                return False
            await self._table.delete_task(run)
            self._changes.note()
            return True

    def beat(self, owner: Owner, lease: float) -> None:
        now = self._clock.now()
        with self._leases_lock:
            self._leases[owner.id] = (replace(owner, beat_at=now), now + lease)

    async def retire_owner(self, owner: str) -> None:
        with self._leases_lock:
            self._leases.pop(owner, None)
        self._changes.note()

    async def list_owners(self) -> list[Owner]:
        with self._leases_lock:
            return [replace(owner, alive=until > self._clock.now()) for owner, until in self._leases.values()]

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        return await self._changes.wait(seen, timeout)

    async def inspect(self) -> list[tuple[str | None, str]]:
        return []

    def _seen(self, head: Head) -> Head:
        """The head with whether its owner lives."""
        with self._leases_lock:
            owned = head.owner in self._leases and self._leases[head.owner][1] > self._clock.now()
        return replace(head, owned=owned)


class DictTable:
    """Stands for your table in this example."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskRecord] = {}

    async def save_task(self, task: TaskRecord) -> None:
        self.tasks[task.id] = task

    async def get_task(self, task_id: str) -> TaskRecord | None:
        return self.tasks.get(task_id)

    async def list_tasks(self) -> list[TaskRecord]:
        return list(self.tasks.values())

    async def delete_task(self, task_id: str) -> None:
        self.tasks.pop(task_id, None)


def gather(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"notes": [f"{state['topic']} rise", f"{state['topic']} fall"]}


def write(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"report": "; ".join(state["notes"])}


async def main() -> None:
    table = DictTable()
    async with Runtime(TaskStore(table)) as rt:
        result: dict[str, Any] = await rt.run(Pipeline("report", [gather, write]), {"topic": "tides"}, id="r1")
    print(result["report"])
    for task in await table.list_tasks():
        print(f"task {task.id}: {task.status}, {task.progress:.0f} %, {len(task.data)} bytes, {task.metadata}")


if __name__ == "__main__":
    asyncio.run(main())
