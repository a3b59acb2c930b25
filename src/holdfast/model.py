"""The records: what a store keeps of a run, and what a user is shown of it.

A run is a log of `Entry`s, one small mutable `Head` beside it, and an inbox of `Mail`. An owner
writes with `Commit`s; everybody else posts mail. `Run`, `Checkpoint` and `Event` are views for users.

What is made for every step holds nothing that could refer back to it, so the garbage collector need
not look at it (`gc=False`).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType, to_builtins


class RunStatus(StrEnum):
    """Where a run stands."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Kind(StrEnum):
    """What an entry of the log records."""

    CREATED = "created"
    CHECKPOINT = "checkpoint"
    ATTEMPT_FAILED = "attempt_failed"
    INTENT = "intent"
    CALL = "call"
    CALL_CHANGED = "call_changed"
    CALLS_UNASKED = "calls_unasked"
    WAIT = "wait"
    SIGNAL = "signal"
    RECEIVED = "received"
    ANSWER = "answer"
    WAITING = "waiting"
    EMITTED = "emitted"
    SUPERSEDED = "superseded"
    PAUSED = "paused"
    RESUMED = "resumed"
    INTERRUPTED = "interrupted"
    REWOUND = "rewound"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# The kinds that hold a state and a position, so that a run can go on from them.
CHECKPOINT_KINDS = frozenset({Kind.CREATED, Kind.CHECKPOINT, Kind.REWOUND})

# The kinds that give what code inside a step asked for: a call or a wait that came to its end.
RESULT_KINDS = frozenset({Kind.CALL, Kind.RECEIVED, Kind.ANSWER})


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One line of a run's log. `cursor` and `body` are JSON; a store never looks into them."""

    seq: int
    kind: str
    fence: int
    at: float
    cursor: bytes
    body: bytes
    check: str


class Head(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run's mutable row. `seq`, `cursor` and `updated_at` are those of its last entry."""

    id: str
    flow: str
    status: str
    owner: str | None = None
    owned: bool = False
    """Whether `owner` is alive right now, as the store sees it. Never stored."""
    fence: int = 0
    attempt: int = 1
    """How often the run has been taken up since it last made progress."""
    base: int = 1
    """The seq at which the segment of the last checkpoint begins with a full snapshot."""
    floor: int = 1
    """The oldest seq that retention leaves visible."""
    wake_at: float | None = None
    expires_at: float | None = None
    parent: str | None = None
    queue: str = "default"
    priority: int = 0
    """Of two runs in a queue the one with the higher number is taken first; it has 16 bits."""
    key: str | None = None
    """Whose run it is, where the flow limits how many of one key run at once."""
    metadata: bytes = b"{}"
    info: bytes = b"{}"
    """What the runtime needs to know of the run without its log: input digest, step names, total."""
    error: bytes | None = None
    waiting_for: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    seq: int = 0
    cursor: bytes = b"null"
    updated_at: float = 0.0


class HeadChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a head that a commit replaces; what is UNSET stays."""

    status: str | UnsetType = UNSET
    owner: str | UnsetType | None = UNSET
    attempt: int | UnsetType = UNSET
    base: int | UnsetType = UNSET
    floor: int | UnsetType = UNSET
    wake_at: float | UnsetType | None = UNSET
    expires_at: float | UnsetType | None = UNSET
    info: bytes | UnsetType = UNSET
    error: bytes | UnsetType | None = UNSET
    waiting_for: str | UnsetType | None = UNSET
    started_at: float | UnsetType | None = UNSET
    ended_at: float | UnsetType | None = UNSET

    def fields(self) -> dict[str, Any]:
        """The changed fields by name."""
        return to_builtins(self, builtin_types=(bytes,))  # type: ignore[no-any-return]  # it leaves out what is UNSET


class Mail(msgspec.Struct, frozen=True, gc=False):
    """Something that others want of a run. `id` is given by the store and rises."""

    kind: str
    body: bytes = b"null"
    key: str | None = None
    at: float = 0.0
    id: int = 0


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an owner writes for one run: wholly or not at all, and only under its fence."""

    run: str
    owner: str
    fence: int
    entries: tuple[Entry, ...] = ()
    create: Head | None = None
    """The head of a new run; refused when the id is taken."""
    change: HeadChange | None = None
    take: tuple[int, ...] = ()
    """Ids of mail that this commit moves into the log."""
    rebase: Entry | None = None
    """Replaces the entry of the same seq by a full snapshot; everything before it is dropped."""
    heard: int | None = None
    """The last mail that its owner knows of; refused when more has come. None: whatever has come."""


class Refusal(StrEnum):
    """Why a commit was not written."""

    STALE = "stale"
    """The run is gone, or its fence or owner is another."""
    EXISTS = "exists"
    """The id of a new run is taken."""
    GAP = "gap"
    """The first entry does not follow the last one in the log."""
    UNHEARD = "unheard"
    """Mail has come that the owner does not know of yet, and wants to before it writes this."""


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What became of one commit, and the mail that waits for its run."""

    refused: Refusal | None = None
    mail: tuple[Mail, ...] = ()


class Posted(StrEnum):
    """What became of a piece of mail."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    NO_RUN = "no_run"


class Claim(msgspec.Struct, frozen=True):
    """A run that the caller owns from now on, with all that is needed to go on with it."""

    head: Head
    entries: tuple[Entry, ...]
    """The log from `head.base` on."""
    mail: tuple[Mail, ...]


class Owner(msgspec.Struct, frozen=True):
    """A runtime that can own runs: 15 lower-case hex digits that no other runtime ever had."""

    id: str
    name: str
    """For people: host and process id."""
    alive: bool = True
    beat_at: float = 0.0
    info: bytes = b"{}"
    """What it says of itself, as JSON: which queues and flows it serves. A store never looks into it."""


class Limit(msgspec.Struct, frozen=True):
    """How many runs of a flow may have a live owner at once; None is any number."""

    flow: str
    most: int | None = None
    most_per_key: int | None = None
    """The same for those of its runs that have the same key; runs without a key are not counted here."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list or to claim. Every given field must match; newest first."""

    ids: tuple[str, ...] | None = None
    states: tuple[tuple[str, bool | None], ...] | None = None
    """Pairs of a stored status and whether a live owner has the run (None: either)."""
    flows: tuple[str, ...] | None = None
    metadata: tuple[tuple[str, str | int | float | bool | None], ...] = ()
    """Top-level keys of the metadata and the exact scalar each must have; integers have 64 bits."""
    parent: str | None = None
    created_from: float | None = None
    created_before: float | None = None
    due_by: float | None = None
    """`wake_at` is at or before this."""
    idle_by: float | None = None
    """`wake_at` is None, or at or before this: the start of the run is not put off any longer."""
    queues: tuple[str, ...] | None = None
    owner: str | None = None
    but: tuple[str, ...] = ()
    """Ids that are left out."""
    expired_by: float | None = None
    """`expires_at` is at or before this."""
    has_mail: bool | None = None
    mail_kinds: tuple[str, ...] | None = None
    """With `has_mail`: only mail of these kinds counts; the other is as good as none."""
    after: tuple[float, str] | None = None
    """(created_at, id) of the last run of the page before."""
    limit: int = 100
    in_turn: bool = False
    """Claim whose turn it is instead of the newest: fair between queues, then by priority, then by age.

    Runs that have ended get no turn."""
    limits: tuple[Limit, ...] = ()
    """With `in_turn`: what would exceed one of these is left out, whoever else claims at the same time."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run."""

    id: str
    flow: str
    status: RunStatus
    step: int
    """How many steps are finished."""
    total_steps: int | None
    step_names: tuple[str, ...]
    next: str | None
    """The step that comes next; None when there is none."""
    progress: float
    """0 to 100."""
    error: str | None
    metadata: dict[str, Any]
    parent: str | None
    attempt: int
    """How often the run has been taken up since it last made progress; 1 is undisturbed."""
    waiting_for: str | None
    owner: str | None
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    ended_at: datetime | None
    queue: str = "default"
    """From which queue workers take it when nobody drives it."""
    priority: int = 0
    """Of two runs in a queue the one with the higher number is taken first."""
    key: str | None = None
    """Whose run it is, where its flow limits how many of one key go at once."""
    starts_at: datetime | None = None
    """For a run that waits in a queue: before this it is not begun."""
    progress_text: str | None = None
    """What the step under way last said with `progress(fraction, text)`."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who drives runs of a store: a worker, or a program that runs its own."""

    id: str
    name: str
    alive: bool
    seen_at: datetime
    """When it last said that it lives."""
    runs: tuple[str, ...]
    """The runs that it has right now."""
    queues: tuple[str, ...] | None
    """The queues that it takes runs from; None is all of them, and () none: it runs only what it starts itself."""
    flows: tuple[str, ...]
    """The flows that its program has, if it takes runs from queues."""
    concurrency: int | None
    """How many runs it drives at once, if it takes runs from queues."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a runtime that takes runs from queues is."""

    well: bool
    """Whether it looks for runs, and the store answered not long ago."""
    state: str
    """"working", "stopping", or "stuck": the store does not answer, or the event loop is held up."""
    id: str
    name: str
    queues: tuple[str, ...] | None
    runs: int
    """How many it drives right now."""
    concurrency: int
    looked: float | None
    """How many seconds ago the store last answered when it looked for runs; None when it has not yet."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A run's state and position after a step. Its id is RUN@SEQ."""

    id: str
    run: str
    seq: int
    step: int
    next: str | None
    state: Any
    metadata: dict[str, Any]
    created_at: datetime
    parent: str | None
    """The checkpoint that this one continues, forks or rewinds to."""
    after: str | None = None
    """The step, node or member after which it was made; None at the beginning of a branch."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a run. Several events of one log entry share its `seq`."""

    type: str
    run: str
    seq: int | None
    """The log entry; None while the event is live only and not yet durable."""
    index: int = 0
    """The place among the events of the same entry."""
    step: str | None = None
    time: datetime
    error: str | None = None
    data: dict[str, Any] = {}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question that a run waits for an answer to."""

    id: str
    run: str
    flow: str
    question: str
    data: Any
    schema: dict[str, Any] | None
    """The JSON Schema that the answer must fit."""
    asked_at: datetime
    expires_at: datetime | None
    """When the run goes on without an answer."""
    unread: bool = False
    """Whether something has come for the run that it has not taken in yet: it may be the answer."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a run's ledger: a journaled call and what became of it."""

    run: str
    key: str
    name: str
    status: str
    """done, failed, abandoned, or in doubt: begun, with an intent, and nobody knows how it ended."""
    seq: int
    on_doubt: str | None
    error: str | None
    started_at: datetime | None
    ended_at: datetime | None


class Problem(msgspec.Struct, frozen=True):
    """Something that is wrong with a store."""

    run: str | None
    """None when it is the store's own structure."""
    seq: int | None
    problem: str
