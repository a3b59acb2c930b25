"""Who drives the runs of a store, and who would take up a run that waits in a queue."""

from __future__ import annotations

import msgspec

from holdfast.core.events import when
from holdfast.core.transitions import ENDED
from holdfast.model import Owner, Query, Run, RunStatus, Worker
from holdfast.store.base import Store

_EVERYTHING = 1_000_000_000
_UNDER_WAY = tuple((status, True) for status in RunStatus if status not in ENDED)


class _Said(msgspec.Struct):
    """What an owner says of itself."""

    queues: tuple[str, ...] | None = ()
    flows: tuple[str, ...] = ()
    concurrency: int | None = None


async def workers(store: Store) -> list[Worker]:
    """Everybody who owns runs or could, by name, the living first."""
    owners = await store.list_owners()
    held: dict[str, list[str]] = {}
    for head in await store.list_heads(Query(states=_UNDER_WAY, limit=_EVERYTHING)):
        held.setdefault(head.owner or "", []).append(head.id)
    found = [_worker(owner, held.get(owner.id, [])) for owner in owners]
    return sorted(found, key=lambda worker: (not worker.alive, worker.name, worker.id))


def _worker(owner: Owner, runs: list[str]) -> Worker:
    try:
        said = msgspec.json.decode(owner.info, type=_Said)
    except msgspec.MsgspecError:
        said = _Said()  # of another version, or tampered with: it is shown all the same
    return Worker(
        id=owner.id,
        name=owner.name,
        alive=owner.alive,
        seen_at=when(owner.beat_at),
        runs=tuple(sorted(runs)),
        queues=said.queues,
        flows=said.flows,
        concurrency=said.concurrency,
    )


def why_not_taken(run: Run, staff: list[Worker]) -> str | None:
    """Why nobody takes up a run that waits for a worker, in a few words; None when somebody alive would."""
    alive = [worker for worker in staff if worker.alive and worker.queues != ()]
    serving = [worker for worker in alive if worker.queues is None or run.queue in worker.queues]
    if not serving:
        return f"no worker serves queue {run.queue!r}"
    if not any(run.flow in worker.flows for worker in serving):
        return f"no worker of queue {run.queue!r} has flow {run.flow!r}"
    return None
