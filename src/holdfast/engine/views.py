"""What a head and a call in the log come to for users to see."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.events import when
from holdfast.core.history import read_body
from holdfast.core.transitions import is_queued, shown_status
from holdfast.engine.info import Ended, Info
from holdfast.errors import StoreDamagedError
from holdfast.model import Call, Entry, Head, Kind, Run, RunStatus


def run_view(head: Head) -> Run:
    """A head as users see it. Raises StoreDamagedError when it is not what was once written."""
    try:
        return _run_view(head)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StoreDamagedError(head.id, None, f"its head cannot be read: {error!r:.200}") from error


def _run_view(head: Head) -> Run:
    info = msgspec.json.decode(head.info, type=Info)
    cursor = msgspec.json.decode(head.cursor)
    status = shown_status(head)
    # A team whose members hand over takes more turns than it has members: then nobody knows how many.
    total = info.total if info.total is None or cursor["step"] <= info.total else None
    progress, text = (100.0, None) if status == RunStatus.COMPLETED else _progress(cursor, total)
    return Run(
        id=head.id,
        flow=head.flow,
        status=status,
        step=cursor["step"],
        total_steps=total,
        step_names=info.steps,
        next=cursor["next"],
        progress=progress,
        progress_text=text,
        error=Ended.of(head).error,
        metadata=msgspec.json.decode(head.metadata, type=dict),
        parent=head.parent,
        attempt=max(head.attempt, 1),
        waiting_for=head.waiting_for,
        queue=head.queue,
        priority=head.priority,
        key=head.key,
        starts_at=when(head.wake_at or head.created_at) if is_queued(head) else None,
        owner=head.owner if head.owned else None,
        created_at=when(head.created_at),
        started_at=None if head.started_at is None else when(head.started_at),
        updated_at=when(head.updated_at),
        ended_at=None if head.ended_at is None else when(head.ended_at),
    )


def _progress(cursor: dict[str, Any], total: int | None) -> tuple[float, str | None]:
    """How far an unfinished run is, from 0 to 100, and what it says of it."""
    said = cursor.get("progress") or {}
    fraction, text = float(said.get("fraction", 0.0)), said.get("text")
    if not total:
        return 100.0 * fraction, text
    return min(100.0, 100.0 * (cursor["step"] + said.get("ahead", 0) + fraction) / total), text


def ledger_line(run: str, entry: Entry, intent: Entry | None) -> Call:
    """A call as users see it."""
    body = read_body(run, entry)
    status = "done" if "result" in body else "failed" if "error" in body else "abandoned"
    if entry.kind == Kind.INTENT or body.get("doubt"):
        status = "in doubt"
    started = body.get("started", intent.at if intent is not None else entry.at)
    asked = body if intent is None else read_body(run, intent)
    return Call(
        run=run,
        key=body["key"],
        name=body["name"],
        status=status,
        seq=entry.seq,
        on_doubt=asked.get("on_doubt", "retry"),
        error=body["error"].get("text") if "error" in body else None,
        started_at=when(started),
        ended_at=when(entry.at) if entry.kind == Kind.CALL else None,
    )
