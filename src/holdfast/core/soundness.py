"""Whether the entries of calls, waits, messages and chunks are whole and belong together, for who looks for damage.

Their checksums are looked at elsewhere: what is found here was written wrong, or sealed again by whoever changed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.history import Signal, read_body
from holdfast.model import CHECKPOINT_KINDS, RESULT_KINDS, Entry, Kind

_PLACE: dict[str, type] = {"key": str, "name": str}
_FIELDS: dict[str, dict[str, type]] = {
    Kind.INTENT: {**_PLACE},
    Kind.CALL: {**_PLACE},
    Kind.WAIT: {**_PLACE, "wait": str},
    Kind.RECEIVED: {**_PLACE, "topic": str, "signal": int, "result": object},
    Kind.ANSWER: {**_PLACE, "ask": str, "result": object},
    Kind.SIGNAL: {"topic": str, "data": object},
    Kind.WAITING: {"for": str},
    Kind.EMITTED: {"name": str, "path": str, "data": object},
    Kind.SUPERSEDED: {"seqs": list},
    Kind.CALL_CHANGED: {**_PLACE},
    Kind.CALLS_UNASKED: {"keys": list},
}
_WAITS: dict[str, dict[str, type]] = {
    "ask": {"ask": str, "question": str},
    "receive": {"topic": str},
    "sleep": {"until": float},
    "child": {"run": str},
}
_ENDS = frozenset({"result", "error", "abandoned", "timed_out"})


class Soundness:
    """Takes in the log of one run, entry by entry."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._waits: set[str] = set()

    def problem(self, entry: Entry, pending: Sequence[Signal], *, whole: bool) -> str | None:
        """What is wrong with the entry; None when nothing is.

        `pending` are the messages that were not received before it. Unless the log before it is `whole`, what it
        refers to may be in the part that cannot be read, and is not missed.
        """
        if entry.kind in CHECKPOINT_KINDS:
            return self._carried(read_body(self._run, entry).get("journal", []))
        if entry.kind not in _FIELDS:
            return None
        body = read_body(self._run, entry)
        found = _malformed(entry.kind, body)
        if found is not None:
            return found
        if entry.kind == Kind.WAIT:
            self._waits.add(body["key"])
        elif whole and entry.kind in (Kind.RECEIVED, Kind.ANSWER) and body["key"] not in self._waits:
            return "it ends a wait that was never begun"
        if whole and entry.kind == Kind.RECEIVED and all(signal.seq != body["signal"] for signal in pending):
            return f"the message {body['signal']} that it received is not in the log, or was received before"
        if entry.kind in RESULT_KINDS and not _is_seq(body.get("of"), entry.seq):
            return "it does not say which checkpoint its step began with"
        if entry.kind == Kind.SUPERSEDED and not all(_is_seq(seq, entry.seq) for seq in body["seqs"]):
            return "it names chunks that cannot be"
        return None

    def _carried(self, journal: Any) -> str | None:
        """What a checkpoint repeats of steps behind it."""
        self._waits.clear()
        if not isinstance(journal, list):
            return "the calls that it repeats cannot be read"
        for item in journal:
            if not isinstance(item, list) or len(item) != 3 or not isinstance(item[2], dict):
                return "the calls that it repeats cannot be read"
            kind, _, body = item
            found = _malformed(kind, body) if kind in _FIELDS else None
            if found is not None:
                return f"of what it repeats, an entry {kind!r}: {found}"
            if kind == Kind.WAIT:
                self._waits.add(body["key"])
        return None


def _malformed(kind: str, body: dict[str, Any]) -> str | None:
    missing = _missing(_FIELDS[kind], body)
    if missing is None and kind == Kind.WAIT:
        missing = _missing(_WAITS[body["wait"]], body) if body["wait"] in _WAITS else "wait"
    if missing is not None:
        return f"its body has no {missing!r}, or not as it must be"
    if kind == Kind.CALL and not _ENDS & body.keys():
        return "it does not say how the call ended"
    if "error" in body and not isinstance(body["error"], dict):
        return "its error cannot be read"
    return None


def _missing(fields: dict[str, type], body: dict[str, Any]) -> str | None:
    for name, kind in fields.items():
        value = body.get(name)
        if name not in body or not isinstance(value, (int, float) if kind is float else kind):
            return name
    return None


def _is_seq(value: Any, before: int) -> bool:
    return type(value) is int and 0 < value < before
