"""Events as a view of the log: each entry shows as one or several of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.core.history import read_body
from holdfast.model import RESULT_KINDS, Entry, Event, Kind

_STATE = frozenset({"state", "delta", "base", "branch", "steps", "result", "journal", "pending"})
_OWN = frozenset({"of", "fits", "tried", "unread"})
"""What only the journal needs to know."""


def events_of(run: str, entry: Entry) -> list[Event]:
    """The events that an entry stands for, in order."""
    body = read_body(run, entry)
    found: list[Event] = []

    def add(kind: str, at: float, **fields: Any) -> None:
        found.append(Event(type=kind, run=run, seq=entry.seq, index=len(found), time=when(at), **fields))

    if entry.kind == Kind.CHECKPOINT:
        # A step's start is not written by itself, so that a step costs one commit.
        for name, started, *ended in body.get("steps", ()):
            add("step_started", started, step=name)
            add("step_completed", ended[0] if ended else entry.at, step=name)
        add("checkpointed", entry.at, step=last_step(body), data=_rest(body))
    elif entry.kind == Kind.EMITTED:
        add(entry.kind, entry.at, data={"name": body["name"], "data": body["data"]})
    elif entry.kind in RESULT_KINDS:
        error = body["error"].get("text") if "error" in body else None
        add(entry.kind, entry.at, error=error, data=_rest(body, "error"))
    elif entry.kind == Kind.ATTEMPT_FAILED:
        add("step_started", body["started"], step=body["step"])
        add("step_failed", entry.at, step=body["step"], error=body["error"], data=_rest(body, "step", "error"))
    else:
        error = body.get("error")
        add(entry.kind, entry.at, step=body.get("step"), error=error, data=_rest(body, "step", "error"))
    return found


def last_step(body: dict[str, Any]) -> str | None:
    """The step after which a checkpoint was made."""
    steps = body.get("steps")
    return steps[-1][0] if steps else None


def when(seconds: float) -> datetime:
    """An aware UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def _rest(body: dict[str, Any], *without: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in _STATE | _OWN and key not in without}
