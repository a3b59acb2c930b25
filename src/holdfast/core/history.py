"""A log folded into what a run goes on with, and the bodies that entries hold.

The body of a checkpoint holds either the whole state (`state`, which begins a segment) or the change
against the checkpoint before it (`delta`, with `base`, the seq at which its segment begins). When what
lies before a checkpoint is dropped, it is written again with both `state` and the `base` it had:

    created     {"state", "branch": 0, "nonce", "from": null or "RUN@SEQ"}
    checkpoint  {"steps": [[name, started, ended], ...], "delta", "base"} or {..., "state", "branch"};
                a step that ended as its checkpoint was made does not say when
    rewound     {"state", "branch", "to": seq}
    completed   {"result"} when a step ended the run with End(result)
    others      what happened, for people and events; those of code inside a step are told in `core.journal`

An entry that begins a segment, and a rewind, repeats in `pending` the messages that nobody has received
yet. In `journal` a checkpoint repeats what is known of steps behind it: calls of a step that ran before
with its save skipped, or those that a rewind to a call goes on with.

A branch is named by the seq of the rewind that began it, 0 for the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.core import delta
from holdfast.core.checksum import seal, verify
from holdfast.core.codec import Tree, dumps, loads, may_hold_marks
from holdfast.core.transitions import ENDED
from holdfast.errors import NotLoadableError, ResultExpiredError, StateError, StoreDamagedError
from holdfast.model import CHECKPOINT_KINDS, Entry, Head, Kind

_SLACK = 4096
_RECKON_AT = 32  # Checkpoints, and every time their number has doubled: reckoning a large state costs.
_STATE_KEYS = frozenset({"state", "branch", "delta", "base", "pending"})


class Signal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that came in, by the seq of its entry."""

    seq: int
    topic: str
    data: Any
    at: float = 0.0
    """When it was sent."""


class Point:
    """A run at one of its checkpoints: state, position, and the segment that holds it."""

    __slots__ = ("base", "branch", "cursor", "entry", "extra", "pending", "plain", "seq", "tree", "written")

    def __init__(
        self,
        entry: Entry,
        tree: Tree,
        cursor: dict[str, Any],
        base: int,
        branch: int,
        written: int,
        extra: dict[str, Any],
    ) -> None:
        self.entry, self.seq = entry, entry.seq
        self.tree, self.cursor, self.base, self.branch = tree, cursor, base, branch
        self.written = written
        """Bytes of snapshot and deltas in the segment so far."""
        self.extra = extra
        """What the entry says beside the state."""
        self.plain = False
        """Whether the state is known to hold no marks."""
        self.pending: tuple[Signal, ...] = ()
        """The messages that nobody had received yet."""

    @property
    def came_to(self) -> dict[str, Tree]:
        """The result, under that name, where the run has ended here with one that is not its state."""
        return {"result": self.extra["result"]} if "result" in self.extra else {}

    @property
    def carried(self) -> dict[str, Any]:
        """What whoever goes on from here needs beside the state."""
        return {key: self.extra[key] for key in ("journal", "result") if key in self.extra}


def read_body(run: str, entry: Entry) -> dict[str, Any]:
    """The body of an entry that has passed its checksum."""
    try:
        body = loads(entry.body)
    except NotLoadableError as error:
        raise StoreDamagedError(run, entry.seq, f"its body cannot be read: {error}") from error
    if not isinstance(body, dict):
        raise StoreDamagedError(run, entry.seq, "its body is not an object")
    return body


class Fold:
    """Takes a log in entry by entry, from a snapshot on, and knows the checkpoint it has come to."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last: Entry | None = None
        self.point: Point | None = None
        self.pending: tuple[Signal, ...] = ()
        """The messages that nobody has received yet, as far as the log was taken in."""
        self.beside = 0
        """Bytes of what else stands in the segment: calls, waits, chunks."""
        self._calls: dict[int, Entry] = {}
        """The calls since the last checkpoint: the next one may recall what they gave."""

    def add(self, entry: Entry) -> Point | None:
        """The checkpoint that the entry holds, if it does. The tree is reused by the next one.

        Raises StoreDamagedError when the entry is damaged or out of line.
        """
        last, self._last = self._last, entry
        verify(self._run, entry)
        if last is not None and entry.seq != last.seq + 1:
            raise StoreDamagedError(self._run, last.seq + 1, "the entry is missing")
        if last is not None and entry.fence < last.fence:
            raise StoreDamagedError(self._run, entry.seq, "it was written by a superseded owner")
        if entry.kind not in CHECKPOINT_KINDS:
            self.beside += len(entry.body)
            if entry.kind == Kind.CALL:
                self._calls[entry.seq] = entry
            elif entry.kind in (Kind.SIGNAL, Kind.RECEIVED):
                self.pending = _pending(self._run, self.pending, entry)
            return None
        body = read_body(self._run, entry)
        if self.point is None or "state" in body:
            self.beside = 0
            self.pending = _pending_in(self._run, entry, body)
        self.point = _step_to(self._run, self.point, entry, body, self._recall)
        self._calls = {}
        self.point.pending = self.pending
        return self.point

    def _recall(self, seq: Any) -> Tree:
        result: Tree = read_body(self._run, self._calls[seq])["result"]
        return result


def _pending(run: str, pending: tuple[Signal, ...], entry: Entry) -> tuple[Signal, ...]:
    body = read_body(run, entry)
    try:
        if entry.kind == Kind.SIGNAL:
            return with_signal(pending, entry.seq, body)
        return tuple(signal for signal in pending if signal.seq != body["signal"])
    except KeyError as error:
        raise StoreDamagedError(run, entry.seq, f"it does not say {error}") from error


def with_signal(pending: tuple[Signal, ...], seq: int, body: dict[str, Any]) -> tuple[Signal, ...]:
    """The messages with the one of that entry; one that was put back is in its old place."""
    place = body.get("again", seq)
    kept = [signal for signal in pending if signal.seq != place]
    signal = Signal(place, body["topic"], body["data"], body.get("at", 0.0))
    return tuple(sorted((*kept, signal), key=lambda one: one.seq))


def _pending_in(run: str, entry: Entry, body: dict[str, Any]) -> tuple[Signal, ...]:
    try:
        return tuple(msgspec.convert(body.get("pending", ()), tuple[Signal, ...]))
    except msgspec.ValidationError as error:
        raise StoreDamagedError(run, entry.seq, f"its messages cannot be read: {error}") from error


def _step_to(
    run: str, before: Point | None, entry: Entry, body: dict[str, Any], recall: Callable[[Any], Tree]
) -> Point:
    extra = {key: value for key, value in body.items() if key not in _STATE_KEYS}
    try:
        cursor = msgspec.json.decode(entry.cursor)
        marked = may_hold_marks(entry.body)
        if "state" in body:
            base = body.get("base", entry.seq)
            point = Point(entry, body["state"], cursor, base, body["branch"], len(entry.body), extra)
            point.plain = not marked
            return point
        if before is None or body["base"] != before.base:
            raise StoreDamagedError(run, entry.seq, "its segment does not begin with a snapshot")
        tree = delta.apply(before.tree, body["delta"], recall)
        point = Point(entry, tree, cursor, before.base, before.branch, before.written + len(entry.body), extra)
        point.plain = before.plain and not marked and not _recalls(body["delta"])
        return point
    except (KeyError, TypeError, ValueError, StateError, msgspec.DecodeError) as error:
        raise StoreDamagedError(run, entry.seq, f"it cannot be rebuilt: {error!r}") from error


def _recalls(change: Sequence[Any]) -> bool:
    """Whether part of the state is in another entry, which may hold marks."""
    return any(op[0] == "recall" for op in change)


def folded(run: str, entries: Iterable[Entry]) -> tuple[Point, Fold]:
    """The last checkpoint in a stretch of log that begins with a snapshot, and what the whole stretch comes to."""
    fold = Fold(run)
    for entry in entries:
        fold.add(entry)
    if fold.point is None:
        raise StoreDamagedError(run, None, "no checkpoint is left in its log")
    return fold.point, fold


def last_point(run: str, entries: Iterable[Entry]) -> Point:
    """The last checkpoint in a stretch of log that begins with a snapshot."""
    return folded(run, entries)[0]


def last_kept(head: Head, entries: Sequence[Entry]) -> Point:
    """The same, of a run's newest segment. Raises ResultExpiredError when a run that has ended kept its head alone."""
    return newest(head, entries)[0]


def newest(head: Head, entries: Sequence[Entry]) -> tuple[Point, Fold]:
    """The same with what the whole stretch comes to."""
    if head.status in ENDED and entries and not any(entry.kind in CHECKPOINT_KINDS for entry in entries):
        raise ResultExpiredError(head.id)
    return folded(head.id, entries)


def failures_since(run: str, entries: Iterable[Entry]) -> tuple[int, float]:
    """How many attempts of the step under way have failed, by the log, and when the next one is due."""
    count, last = 0, None
    for entry in entries:
        if entry.kind == Kind.ATTEMPT_FAILED:
            count, last = count + 1, entry
        elif entry.kind in CHECKPOINT_KINDS or entry.kind == Kind.FAILED:
            count, last = 0, None
    return count, 0.0 if last is None else float(read_body(run, last).get("retry_at") or 0.0)


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Decides whether a checkpoint is written as a change or as a whole, and keeps count of the bytes.

    A new segment begins when snapshot and deltas exceed twice the current state (+ 4 KB). The size of
    the state is reckoned only when that may have become true: reckoning costs as much as writing it.
    Never changed in place, so that a commit that fails leaves it as it was.
    """

    base: int
    written: int
    size: int = 0
    """Bytes of the state when it was last reckoned."""
    entries: int = 0
    plain: bool = False
    """Whether the state is known to hold no marks."""

    def next(
        self,
        seq: int,
        old: Tree,
        new: Tree,
        branch: int,
        extra: dict[str, Any],
        known: Sequence[Any] | None = None,
        beside: int = 0,
        pending: Sequence[Signal] = (),
        *,
        whole: bool = False,
    ) -> tuple[bytes, Segment]:
        """The body of the checkpoint `seq` that goes from `old` to `new`, and the segment with it.

        `known` is the change, where it need not be searched for.

        `beside` is what calls, waits and chunks have added to the log since the segment began: whoever takes
        the run up reads it too, so it is left behind when it is much more than the state.
        """
        base, size, entries = self.base, self.size, self.entries + 1
        if not whole:
            change: Any = delta.diff(old, new) if known is None else known
            body = dumps({**extra, "delta": change, "base": base})
            total = self.written + len(body)
            most = beside if beside > total else total
            if most > 2 * size + _SLACK or (entries >= _RECKON_AT and entries & (entries - 1) == 0):
                size = len(dumps(new))
            if most <= 2 * size + _SLACK:
                plain = self.plain and not may_hold_marks(body) and not (known and _recalls(known))
                return body, Segment(base, total, size, entries, plain)
        body = dumps({**extra, "state": new, "branch": branch, **_repeated(pending)})
        return body, Segment(seq, len(body), len(body), 0, not may_hold_marks(body))


def _repeated(pending: Sequence[Signal]) -> dict[str, Any]:
    return {"pending": list(pending)} if pending else {}


def rebased(run: str, point: Point) -> Entry:
    """The checkpoint written again as a whole, so that what lies before it can be dropped.

    It stays in its segment: the changes that follow it in the log go on naming that one.
    """
    entry = point.entry
    place = {"state": point.tree, "branch": point.branch, "base": point.base}
    body = dumps({**point.extra, **place, **_repeated(point.pending)})
    return seal(run, entry.seq, entry.kind, entry.fence, entry.at, entry.cursor, body)


def position_of(head: Head) -> dict[str, Any]:
    """Where a run stands. Raises StoreDamagedError."""
    try:
        cursor: dict[str, Any] = msgspec.json.decode(head.cursor)
        return cursor
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamagedError(head.id, head.seq, f"its position cannot be read: {error}") from error


def log_problem(head: Head, entries: list[Entry]) -> str | None:
    """What of the head contradicts the (verified) end of the log; None when they agree."""
    last_status = {
        Kind.COMPLETED: "completed",
        Kind.FAILED: "failed",
        Kind.CANCELLED: "cancelled",
        Kind.PAUSED: "paused",
        Kind.WAITING: "waiting",
    }
    last = entries[-1].kind if entries else None
    implied = last_status.get(Kind(last)) if last in set(Kind) else None
    if implied is not None and implied != head.status:
        return f"its status is {head.status} but its log ends with {last}"
    if implied is None and head.status in last_status.values():
        return f"its status is {head.status} but its log does not say so"
    if last == Kind.WAITING:
        body = read_body(head.id, entries[-1])
        if (head.waiting_for, head.wake_at) != (body.get("for"), body.get("until")):
            return f"its log says that it waits for {body.get('for')!r}, and its head something else"
    return None
