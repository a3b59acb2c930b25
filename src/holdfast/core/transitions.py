"""The state machine and the verb table, as data. Every change of status is decided here."""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import HoldfastError
from holdfast.model import Head, RunStatus

S = RunStatus

_NEXT: dict[str, frozenset[str]] = {
    S.PENDING: frozenset({S.RUNNING, S.PAUSED, S.INTERRUPTED, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.RUNNING: frozenset({S.WAITING, S.PAUSED, S.INTERRUPTED, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.WAITING: frozenset({S.RUNNING, S.PAUSED, S.INTERRUPTED, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.PAUSED: frozenset({S.RUNNING, S.CANCELLED}),
    S.INTERRUPTED: frozenset({S.RUNNING, S.WAITING, S.PAUSED, S.COMPLETED, S.FAILED, S.CANCELLED}),
    S.COMPLETED: frozenset({S.RUNNING}),  # by a rewind only
    S.FAILED: frozenset({S.RUNNING}),  # by a resume or a rewind only
}  # absent: terminal

ENDED = frozenset({S.COMPLETED, S.FAILED, S.CANCELLED})


def check_transition(old: str, new: str) -> None:
    """Raises unless a run may go from `old` to `new`. A failure here is a bug of the runtime."""
    if old != new and new not in _NEXT.get(old, frozenset()):
        raise HoldfastError(f"a run cannot go from {old} to {new}")


class Situation(StrEnum):
    """A run as the verbs see it: its status and whether a live process has it."""

    LIVE = "live"
    WAITING = "waiting"
    RESUMABLE = "resumable"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


def situation(head: Head) -> Situation:
    """The row of the verb table that a run is in."""
    if head.status in ENDED or head.status == S.PAUSED:
        return Situation(head.status)
    if head.status == S.WAITING and not head.owned:
        return Situation.WAITING
    return Situation.LIVE if head.owned else Situation.RESUMABLE


def shown_status(head: Head) -> RunStatus:
    """The status for users: a dead owner is seen, and so is one that has just taken a run up."""
    if head.status == S.RUNNING and not head.owned:
        return S.INTERRUPTED
    if head.status in (S.INTERRUPTED, S.WAITING) and head.owned:
        return S.RUNNING
    return S(head.status)


def stored_states(status: RunStatus) -> tuple[tuple[str, bool | None], ...]:
    """The stored statuses, with or without a live owner, that are shown as `status`."""
    if status == S.RUNNING:
        return (S.RUNNING, True), (S.INTERRUPTED, True), (S.WAITING, True)
    if status == S.INTERRUPTED:
        return (S.RUNNING, False), (S.INTERRUPTED, False)
    if status == S.WAITING:
        return ((S.WAITING, False),)
    return ((status, None),)


def is_queued(head: Head) -> bool:
    """Whether a run waits in a queue for a worker: it was started for that, and nobody has taken it up yet."""
    return head.status == S.PENDING and head.attempt == 0


# What recovery takes up: nobody alive has it, and nobody asked for it to stop.
RECOVERABLE: tuple[tuple[str, bool | None], ...] = ((S.PENDING, False), (S.RUNNING, False), (S.INTERRUPTED, False))


# What is taken up when it is due, or when something has come for it.
WAITS: tuple[tuple[str, bool | None], ...] = ((S.WAITING, False),)


# What may be claimed without taking it from anybody: a store lets an owner claim its own runs again.
UNOWNED: tuple[tuple[str, bool | None], ...] = tuple((status, False) for status in S)


class Act(StrEnum):
    """What a verb does in a situation."""

    JOIN = "join"  # wait with whoever has it
    TAKE = "take"  # claim it and go on
    APPLY = "apply"  # claim it and change its status
    POST = "post"  # ask its owner
    RESULT = "result"
    NOTHING = "nothing"
    RAISE = "raise"  # say what the run has come to
    REFUSE = "refuse"  # say why the verb makes no sense


_VERBS: dict[str, dict[Situation, Act]] = {
    "run": {
        Situation.LIVE: Act.JOIN,
        Situation.WAITING: Act.JOIN,
        Situation.RESUMABLE: Act.TAKE,
        Situation.PAUSED: Act.RAISE,
        Situation.COMPLETED: Act.RESULT,
        Situation.FAILED: Act.RAISE,
        Situation.CANCELLED: Act.RAISE,
    },
    "resume": {
        Situation.LIVE: Act.REFUSE,
        Situation.WAITING: Act.RAISE,
        Situation.RESUMABLE: Act.TAKE,
        Situation.PAUSED: Act.TAKE,
        Situation.COMPLETED: Act.REFUSE,
        Situation.FAILED: Act.TAKE,
        Situation.CANCELLED: Act.REFUSE,
    },
    "rewind": {
        Situation.LIVE: Act.REFUSE,
        Situation.WAITING: Act.TAKE,
        Situation.RESUMABLE: Act.TAKE,
        Situation.PAUSED: Act.TAKE,
        Situation.COMPLETED: Act.TAKE,
        Situation.FAILED: Act.TAKE,
        Situation.CANCELLED: Act.REFUSE,
    },
    "pause": {
        Situation.LIVE: Act.POST,
        Situation.WAITING: Act.APPLY,
        Situation.RESUMABLE: Act.APPLY,
        Situation.PAUSED: Act.NOTHING,
        Situation.COMPLETED: Act.REFUSE,
        Situation.FAILED: Act.REFUSE,
        Situation.CANCELLED: Act.REFUSE,
    },
    "cancel": {
        Situation.LIVE: Act.POST,
        Situation.WAITING: Act.APPLY,
        Situation.RESUMABLE: Act.APPLY,
        Situation.PAUSED: Act.APPLY,
        Situation.COMPLETED: Act.REFUSE,
        Situation.FAILED: Act.REFUSE,
        Situation.CANCELLED: Act.NOTHING,
    },
    "wake": {
        Situation.LIVE: Act.JOIN,
        Situation.WAITING: Act.TAKE,
        Situation.RESUMABLE: Act.TAKE,
        Situation.PAUSED: Act.RAISE,
        Situation.COMPLETED: Act.RESULT,
        Situation.FAILED: Act.RAISE,
        Situation.CANCELLED: Act.RAISE,
    },
    "send": {
        Situation.LIVE: Act.POST,
        Situation.WAITING: Act.POST,
        Situation.RESUMABLE: Act.POST,
        Situation.PAUSED: Act.POST,
        Situation.COMPLETED: Act.REFUSE,
        Situation.FAILED: Act.POST,
        Situation.CANCELLED: Act.REFUSE,
    },
    "answer": {
        Situation.LIVE: Act.POST,
        Situation.WAITING: Act.POST,
        Situation.RESUMABLE: Act.POST,
        Situation.PAUSED: Act.POST,
        Situation.COMPLETED: Act.REFUSE,
        Situation.FAILED: Act.REFUSE,
        Situation.CANCELLED: Act.REFUSE,
    },
    "delete": {
        Situation.LIVE: Act.REFUSE,
        Situation.WAITING: Act.APPLY,
        Situation.RESUMABLE: Act.APPLY,
        Situation.PAUSED: Act.APPLY,
        Situation.COMPLETED: Act.APPLY,
        Situation.FAILED: Act.APPLY,
        Situation.CANCELLED: Act.APPLY,
    },
}

HINTS: dict[tuple[str, Situation], str] = {
    ("resume", Situation.COMPLETED): "rt.run gives its result; rt.rewind goes back to a checkpoint.",
    ("resume", Situation.CANCELLED): "A cancel is final; rt.fork begins a new run from one of its checkpoints.",
    ("rewind", Situation.CANCELLED): "A cancel is final; rt.fork begins a new run from one of its checkpoints.",
    ("pause", Situation.COMPLETED): "There is nothing left to pause.",
    ("pause", Situation.FAILED): "It is not going on; rt.resume would try its failed step again.",
    ("pause", Situation.CANCELLED): "A cancel is final.",
    ("cancel", Situation.COMPLETED): "There is nothing left to cancel.",
    ("cancel", Situation.FAILED): "It is not going on already.",
    ("delete", Situation.LIVE): "Cancel it first.",
    ("send", Situation.COMPLETED): "Nobody would receive the message.",
    ("send", Situation.CANCELLED): "Nobody would receive the message.",
    ("answer", Situation.COMPLETED): "It asks nothing any more.",
    ("answer", Situation.FAILED): "It asks nothing; rt.resume tries its failed step again.",
    ("answer", Situation.CANCELLED): "It asks nothing any more.",
}


def act(verb: str, where: Situation) -> Act:
    """What `verb` does to a run in that situation."""
    return _VERBS[verb][where]
