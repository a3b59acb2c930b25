"""A log folded into what a run goes on with, and the bodies that entries hold.

The body of a checkpoint holds either the whole state (`state`, which begins a segment) or the change
against the checkpoint before it (`delta`, with `base`, the seq at which its segment begins):

    created     {"state", "branch": 0, "nonce", "from": null or "RUN@SEQ"}
    checkpoint  {"steps": [[name, started, ended], ...], "delta", "base"} or {..., "state", "branch"}
    rewound     {"state", "branch", "to": seq}
    completed   {"result"} when a step ended the run with End(result)
    others      what happened, for people and events

A branch is named by the seq of the rewind that began it, 0 for the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.core import delta
from holdfast.core.checksum import seal, verify
from holdfast.core.codec import Tree, dumps, loads
from holdfast.errors import NotLoadableError, StateError, StoreDamagedError
from holdfast.model import CHECKPOINT_KINDS, Entry, Head, Kind

_SLACK = 4096
_RECKON_EVERY = 32
_STATE_KEYS = frozenset({"state", "branch", "delta", "base"})


class Point:
    """A run at one of its checkpoints: state, position, and the segment that holds it."""

    __slots__ = ("base", "branch", "cursor", "entry", "extra", "seq", "tree", "written")

    def __init__(
        self, entry: Entry, tree: Tree, cursor: dict[str, Any], base: int, branch: int, written: int, extra: dict[str, Any]
    ) -> None:
        self.entry, self.seq = entry, entry.seq
        self.tree, self.cursor, self.base, self.branch = tree, cursor, base, branch
        self.written = written
        """Bytes of snapshot and deltas in the segment so far."""
        self.extra = extra
        """What the entry says beside the state."""


def read_body(run: str, entry: Entry) -> dict[str, Any]:
    """The body of an entry that has passed its checksum."""
    try:
        body = loads(entry.body)
    except NotLoadableError as error:
        raise StoreDamagedError(run, entry.seq, f"its body cannot be read: {error}") from error
    if not isinstance(body, dict):
        raise StoreDamagedError(run, entry.seq, "its body is not an object")
    return body


def verified(run: str, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries one by one. Raises StoreDamagedError at the first that is damaged or out of line."""
    last: Entry | None = None
    for entry in entries:
        verify(run, entry)
        if last is not None and entry.seq != last.seq + 1:
            raise StoreDamagedError(run, last.seq + 1, "the entry is missing")
        if last is not None and entry.fence < last.fence:
            raise StoreDamagedError(run, entry.seq, "it was written by a superseded owner")
        last = entry
        yield entry


def points(run: str, entries: Iterable[Entry]) -> Iterator[Point]:
    """Every checkpoint in a stretch of log that begins with a snapshot. The tree is reused: copy to keep."""
    point: Point | None = None
    for entry in verified(run, entries):
        if entry.kind in CHECKPOINT_KINDS:
            point = _step_to(run, point, entry, read_body(run, entry))
            yield point


def _step_to(run: str, before: Point | None, entry: Entry, body: dict[str, Any]) -> Point:
    extra = {key: value for key, value in body.items() if key not in _STATE_KEYS}
    try:
        cursor = msgspec.json.decode(entry.cursor)
        if "state" in body:
            return Point(entry, body["state"], cursor, entry.seq, body["branch"], len(entry.body), extra)
        if before is None or body["base"] != before.base:
            raise StoreDamagedError(run, entry.seq, "its segment does not begin with a snapshot")
        tree = delta.apply(before.tree, body["delta"])
        return Point(entry, tree, cursor, before.base, before.branch, before.written + len(entry.body), extra)
    except (KeyError, TypeError, ValueError, StateError, msgspec.DecodeError) as error:
        raise StoreDamagedError(run, entry.seq, f"it cannot be rebuilt: {error!r}") from error


def last_point(run: str, entries: Iterable[Entry]) -> Point:
    """The last checkpoint in a stretch of log that begins with a snapshot."""
    point = None
    for point in points(run, entries):
        pass
    if point is None:
        raise StoreDamagedError(run, None, "no checkpoint is left in its log")
    return point


def failures_since(entries: Iterable[Entry]) -> int:
    """How many attempts of the step under way have failed, by the log."""
    count = 0
    for entry in entries:
        if entry.kind == Kind.ATTEMPT_FAILED:
            count += 1
        elif entry.kind in CHECKPOINT_KINDS or entry.kind == Kind.FAILED:
            count = 0
    return count


class Segment:
    """Decides whether a checkpoint is written as a change or as a whole, and keeps count of the bytes.

    A new segment begins when snapshot and deltas exceed twice the current state (+ 4 KB). The size of
    the state is reckoned only when that may have become true: reckoning costs as much as writing it.
    """

    def __init__(self, base: int, written: int) -> None:
        self.base, self.written = base, written
        self._size = 0  # not known: reckoned at the next checkpoint
        self._entries = 0

    def body(self, seq: int, old: Tree, new: Tree, branch: int, extra: dict[str, Any]) -> bytes:
        """The body of the checkpoint `seq` that goes from `old` to `new`."""
        ops = delta.diff(old, new)
        body = dumps({**extra, "delta": ops, "base": self.base})
        self._entries += 1
        if self._outgrown(len(body), new):
            body = dumps({**extra, "state": new, "branch": branch})
            self.begin(seq, len(body))
        else:
            self.written += len(body)
        return body

    def begin(self, seq: int, written: int) -> None:
        """A snapshot of that many bytes was written at `seq`."""
        self.base, self.written, self._size, self._entries = seq, written, written, 0

    def _outgrown(self, more: int, state: Tree) -> bool:
        total = self.written + more
        if total > 2 * self._size + _SLACK or self._entries % _RECKON_EVERY == 0:
            self._size = len(dumps(state))
            return total > 2 * self._size + _SLACK
        return False


def rebased(run: str, point: Point) -> Entry:
    """The checkpoint written again as a whole, so that what lies before it can be dropped."""
    entry = point.entry
    body = dumps({**point.extra, "state": point.tree, "branch": point.branch})
    return seal(run, entry.seq, entry.kind, entry.fence, entry.at, entry.cursor, body)


def log_problem(head: Head, entries: list[Entry]) -> str | None:
    """What of the head contradicts the (verified) end of the log; None when they agree."""
    last_status = {
        Kind.COMPLETED: "completed",
        Kind.FAILED: "failed",
        Kind.CANCELLED: "cancelled",
        Kind.PAUSED: "paused",
    }
    last = entries[-1].kind if entries else None
    implied = last_status.get(Kind(last)) if last in set(Kind) else None
    if implied is not None and implied != head.status:
        return f"its status is {head.status} but its log ends with {last}"
    if implied is None and head.status in last_status.values():
        return f"its status is {head.status} but its log does not say so"
    return None
