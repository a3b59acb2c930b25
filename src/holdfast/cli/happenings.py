"""What an event says, on one line."""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast.cli.accepted import brief
from holdfast.cli.output import time_of
from holdfast.model import Event

_QUESTION = 100
_BRIEF = 80


def about(event: Event) -> str:
    """The step, call, topic or chunk that the event is about; empty for those about the run itself."""
    data = event.data
    match event.type:
        case "wait":
            return str(data.get("topic") or data.get("run") or data.get("ask") or data.get("name", ""))
        case "signal" | "received":
            return str(data.get("topic", ""))
        case "answer":
            return str(data.get("ask", ""))
        case "call" if "run" in data:
            return str(data["run"])
    return event.step or str(data.get("name", ""))


def told(event: Event) -> str:
    """What happened, beyond what the event's type says."""
    data = event.data
    match event.type:
        case "call":
            return event.error or _ended(data) or "done"
        case "wait":
            return _begun(data)
        case "intent":
            return f"begins; on doubt: {data.get('on_doubt')}"
        case "waiting":
            return f"for {data.get('for')}"
        case "emitted" if data.get("name") == "progress" and isinstance(data.get("data"), dict):
            return progress_of(data["data"]) or brief(data["data"], _BRIEF)
        case "signal" | "emitted":
            return brief(data.get("data"), _BRIEF)
        case "superseded":
            return f"chunks {_listed(data.get('seqs'))} of an earlier attempt"
        case "call_changed":
            return f"{data.get('key')} was found again with other arguments; its stored result counts"
        case "calls_unasked":
            return f"done before and not asked for again: {_listed(data.get('keys'), data.get('count'))}"
        case "rewound":
            return f"to {event.run}@{data.get('to')}"
        case "cancelled":
            return str(data.get("reason") or "")
    return event.error or ""


def progress_of(data: dict[str, Any]) -> str | None:
    """What `progress(fraction, text)` said; None when the chunk is something else of that name."""
    fraction = data.get("fraction")
    if not isinstance(fraction, int | float):
        return None
    return f"{fraction:.0%} {data.get('text') or ''}".rstrip()


def _ended(data: dict[str, Any]) -> str:
    if data.get("timed_out"):
        return f"{data.get('what', 'it')} did not come in time"
    if data.get("doubt"):
        return "given up; whether it was done is in doubt"
    return "given up" if data.get("abandoned") else ""


def _begun(data: dict[str, Any]) -> str:
    until = data.get("until")
    by = f" until {time_of(until)} UTC" if isinstance(until, int | float) else ""
    match data.get("wait"):
        case "ask":
            return f"for an answer to {str(data.get('question'))[:_QUESTION]!r}{by}"
        case "receive":
            return f"for a message{by}"
        case "child":
            return "for a child run"
        case _:
            return by.strip()


def _listed(items: Any, count: Any = None) -> str:
    found = items if isinstance(items, list) else []
    more = (count if isinstance(count, int) else len(found)) - len(found[:3])
    return ", ".join(str(item) for item in found[:3]) + (f" and {more} more" if more > 0 else "")


class Rows:
    """The last lines of a run's story: one for each event, and one for all chunks that follow one another."""

    def __init__(self, most: int) -> None:
        self._rows: deque[list[object]] = deque(maxlen=most)
        self._chunks: tuple[str, int | None, int] | None = None

    def add(self, event: Event) -> None:
        """This happened next."""
        row: list[object] = [event.seq, event.type, about(event) or "-", time_of(event.time), told(event)]
        if event.type != "emitted":
            self._chunks = None
        elif self._chunks is not None and self._chunks[0] == row[2]:
            name, first, count = self._chunks
            self._chunks = (name, first, count + 1)
            self._rows[-1] = [f"{first}-{event.seq}", event.type, name, row[3], f"{count + 1} chunks, last {row[4]}"]
            return
        else:
            self._chunks = (str(row[2]), event.seq, 1)
        self._rows.append(row)

    def __iter__(self) -> Any:
        return iter(self._rows)
