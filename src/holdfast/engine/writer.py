"""The log of a run that is owned here: the one place that turns what happened into a commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from holdfast.clock import Clock
from holdfast.core.checksum import seal
from holdfast.core.codec import Tree, dumps
from holdfast.core.history import Point, Segment, Signal, position_of, with_signal
from holdfast.core.transitions import ENDED, check_transition
from holdfast.engine.committer import Committer
from holdfast.engine.progress import Landed, Mark, Progress, last_checkpoint, told
from holdfast.errors import How, OwnershipLostError, StoreError
from holdfast.model import RESULT_KINDS, Commit, Entry, Head, HeadChange, Kind, Mail, Refusal, RunStatus

# A new run has no mail, and whoever claims one gets it. But soon after a run has begun somebody may think better of it:
# so its mail is asked for somewhat earlier than that of a run that goes on.
_EARLIER = 0.03

# Looked at in every step or run, and slow to find in their enums.
_RUNNING, _CREATED, _CHECKPOINT = RunStatus.RUNNING, Kind.CREATED, Kind.CHECKPOINT
_SIGNAL, _RECEIVED = Kind.SIGNAL, Kind.RECEIVED
_NOT_BEGUN = frozenset({RunStatus.WAITING, RunStatus.PENDING})


class UnheardError(Exception):
    """Mail has come that is to be heard first; nothing was written."""


class RunWriter:
    """Knows what the store holds of the run, and writes what comes next under the run's fence."""

    # All is set at once, when a writer is made: what is added to many of them later takes each a dict of its own.
    said: dict[str, Any] | None
    """How far the step under way says it is: shown with the cursor, never part of a checkpoint."""
    branch: int
    checkpoint_seq: int
    beside: int
    """Bytes that calls, waits and chunks have added to the log since the segment began."""
    pending: tuple[Signal, ...]
    """The messages in the log that nobody has received yet."""
    marks_due: tuple[Mark, ...]
    """What happened already and travels with the next commit."""
    fields_due: dict[str, Any] | None
    """What of the head has changed already and travels with it too."""
    written: Sequence[Entry]
    """The entries of the last commit."""
    settled: int
    """How many steps a commit that was in doubt has turned out to have saved, for whoever takes them for unsaved."""
    closed: bool
    """Nothing more is written from here."""
    given_up: bool
    """The store knows that the run is not owned by this writer any more."""
    heard_at: float
    """When the store last said what mail there is, on the event loop's clock."""
    _in_doubt: tuple[Landed, ...]
    _lost: OwnershipLostError | None = None
    """What the refusal of a commit was told as."""

    def __init__(self, committer: Committer, clock: Clock, head: Head, point: Point | None) -> None:
        """Without a point only the status can be written: for a run that cannot be gone on with."""
        assert head.owner is not None
        self._committer, self._clock = committer, clock
        self.run, self.owner, self.fence = head.id, head.owner, head.fence
        self.status, self.attempt, self.seq, self.floor = head.status, head.attempt, head.seq, head.floor
        self.started_at, self._waited = head.started_at, head.waiting_for is not None
        self.marks_due, self.pending, self.written, self._in_doubt = (), (), (), ()
        self.branch, self.checkpoint_seq, self.beside, self.settled = 0, 0, 0, 0
        self.heard_at = committer.loop.time() - _EARLIER
        self.said, self.fields_due, self.closed, self.given_up = None, None, False, False
        self.tree: Tree = None
        self.came_to: dict[str, Tree] = {}
        if point is None:
            self.cursor: dict[str, Any] = position_of(head)
            self.segment = Segment(head.base, 0)
            return
        self.tree, self.cursor = point.tree, point.cursor
        self.branch, self.checkpoint_seq, self.came_to = point.branch, point.seq, point.came_to
        self.segment = Segment(point.base, point.written, plain=point.plain)
        if head.cursor not in (b"null", point.entry.cursor):
            self.said = msgspec.json.decode(head.cursor).get("progress")

    async def write(
        self,
        marks: Sequence[Mark] = (),
        *,
        progress: Progress | None = None,
        extra: dict[str, Any] | None = None,
        status: RunStatus | None = None,
        take: tuple[int, ...] = (),
        drop_history: bool = False,
        under_way: bool = False,
        heard: int | None = None,
        **fields: Any,
    ) -> tuple[Mail, ...]:
        """Commit the progress and the marks together; gives the mail that waits for the run.

        `under_way` says that a step of the run is: it is running, and not in a crash loop if something was finished.
        A status other than running gives the run up as well. When this raises StoreError, nothing is
        known to have been written; OwnershipLostError says that it is not ours any more, and nothing was;
        UnheardError that mail has come after the last one that was `heard`.
        """
        if self.closed:
            raise self._lost or OwnershipLostError(self.run, self.fence, "given up")
        only_progress = not (marks or extra or status or take or under_way or fields)
        while True:
            if only_progress and progress is not None and self._goes_on_as_usual():
                commit, landed = self._step(progress)
            else:
                commit, landed = self._prepared(
                    marks, progress, extra, status, take, fields, drop_history, under_way, heard
                )
            try:
                reply = await self._committer.commit(commit)
            except StoreError:
                if progress is not None:  # the list goes on growing, and what was written holds only these
                    landed.progress = Progress(progress.tree, progress.cursor, tuple(progress.steps))
                self._in_doubt += (landed,)
                raise
            if reply.refused is None:
                break
            if reply.refused is Refusal.UNHEARD:
                raise UnheardError
            if reply.refused is not Refusal.GAP or not self._in_doubt:
                raise await self._lose()
            # A commit that failed had reached the disk after all: count it, and write what is new.
            progress = await self._settle_doubt(progress)
        self._in_doubt = ()
        self._count(landed)
        self.heard_at = self._committer.heard_at
        return reply.mail

    def _prepared(
        self,
        marks: Sequence[Mark],
        progress: Progress | None,
        extra: dict[str, Any] | None,
        status: RunStatus | None,
        take: tuple[int, ...],
        fields: dict[str, Any],
        drop_history: bool,
        under_way: bool,
        heard: int | None,
    ) -> tuple[Commit, Landed]:
        """The commit behind what the store is known to hold, and what is counted once it is there."""
        now, stepped = self._clock.now(), progress is not None
        entries, segment = self._entries(marks, progress, extra, now, whole=drop_history)
        rebase = last_checkpoint(entries) if drop_history else None
        changed = {**(self.fields_due or {}), **fields}
        if rebase is not None:
            changed["floor"] = rebase.seq
        advances = stepped or (under_way and any(kind in RESULT_KINDS for kind, _ in marks))
        if advances and self.attempt != 1:
            changed.setdefault("attempt", 1)
        change = self._change(changed, status, segment, now, under_way=under_way or stepped, stepped=stepped)
        commit = Commit(
            run=self.run,
            owner=self.owner,
            fence=self.fence,
            entries=entries,
            change=change,
            take=take,
            rebase=rebase,
            heard=heard,
        )
        return commit, Landed(entries, change, progress, segment)

    def _goes_on_as_usual(self) -> bool:
        """Whether a step leads to nothing but a checkpoint: the head stays as it is, and nothing else is due."""
        return (
            self.status == _RUNNING
            and self.attempt == 1
            and not self._waited
            and not self.marks_due
            and not self.fields_due
        )

    def _step(self, progress: Progress) -> tuple[Commit, Landed]:
        """The same for a step like most, which is why it is said a second time, in as few words as possible."""
        now, seq, run, owner, fence = self._clock.now(), self.seq + 1, self.run, self.owner, self.fence
        steps = {"steps": told(progress.steps, now)}
        body, segment = self.segment.next(
            seq, self.tree, progress.tree, self.branch, steps, progress.change, self.beside, self.pending
        )
        entries = (seal(run, seq, _CHECKPOINT, fence, now, dumps(progress.cursor), body),)
        if segment.base == self.segment.base:
            return Commit(run=run, owner=owner, fence=fence, entries=entries), Landed(entries, None, progress, segment)
        change = HeadChange(base=segment.base)
        commit = Commit(run=run, owner=owner, fence=fence, entries=entries, change=change)
        return commit, Landed(entries, change, progress, segment)

    async def _settle_doubt(self, progress: Progress | None) -> Progress | None:
        """Count the one of the commits in doubt that the store holds; the progress that is left to write.

        Several that failed tried for the same place in the log: only the log itself tells which one has it.
        """
        found = [entry.check for entry in await self._committer.read_back(self.run, self.seq)]
        doubtful, self._in_doubt = self._in_doubt, ()
        landed = next((one for one in doubtful if [entry.check for entry in one.entries] == found), None)
        if landed is None:
            raise await self._lose()
        self._count(landed)
        if landed.progress is not None:
            self.settled += len(landed.progress.steps)
        if progress is None or landed.progress is None:
            return progress
        return Progress(progress.tree, progress.cursor, progress.steps[len(landed.progress.steps) :])

    async def _lose(self) -> OwnershipLostError:
        """The store has refused a commit: nothing more is written from here. What to raise, as far as it is known."""
        self.closed = self.given_up = True
        cause: StoreError | None = None
        try:
            how: How = "taken over" if await self._committer.is_there(self.run) else "gone"
        except StoreError as error:
            how, cause = "unknown", error
        self._lost = OwnershipLostError(self.run, self.fence, how)
        self._lost.__cause__ = cause
        return self._lost

    async def rewind(self, point: Point, *, to: int, pending: Sequence[Signal], take: tuple[int, ...] = ()) -> None:
        """Begin a new branch at an older checkpoint, or at a call behind it: durable, and the run goes on there."""
        check_transition(self.status, RunStatus.RUNNING)
        seq = self.seq + 1
        kept = point.carried
        if pending:
            kept["pending"] = pending
        body = dumps({"state": point.tree, "branch": seq, "to": to, **kept})
        entry = seal(self.run, seq, Kind.REWOUND, self.fence, self._clock.now(), dumps(point.cursor), body)
        change = HeadChange(
            status=RunStatus.RUNNING,
            base=seq,
            attempt=1,
            error=None,
            ended_at=None,
            expires_at=None,
            waiting_for=None,
            wake_at=None,
        )
        commit = Commit(run=self.run, owner=self.owner, fence=self.fence, entries=(entry,), change=change, take=take)
        reply = await self._committer.commit(commit)
        if reply.refused is not None:
            raise await self._lose()
        self._count(Landed((entry,), change, None, Segment(seq, len(body), len(body))))
        self.tree, self.cursor, self.branch, self.checkpoint_seq = point.tree, point.cursor, seq, seq
        self.said, self.came_to = None, point.came_to
        self.pending, self.beside = tuple(pending), 0

    async def release(self) -> None:
        """Give the run up as it stands. A refusal means that somebody else has it already."""
        self.closed = True
        await self._committer.commit(
            Commit(
                run=self.run, owner=self.owner, fence=self.fence, change=HeadChange(owner=None, attempt=self.attempt)
            )
        )

    async def look(self) -> tuple[Mail, ...]:
        """The mail that waits for the run; writes nothing."""
        reply = await self._committer.commit(Commit(run=self.run, owner=self.owner, fence=self.fence))
        return reply.mail

    async def replace_history(self, entry: Entry) -> None:
        """Put a full snapshot in the place of an older checkpoint and drop what lies before it."""
        reply = await self._committer.commit(
            Commit(run=self.run, owner=self.owner, fence=self.fence, rebase=entry, change=HeadChange(floor=entry.seq))
        )
        if reply.refused is None:
            self.floor = entry.seq

    def _entries(
        self, marks: Sequence[Mark], progress: Progress | None, extra: dict[str, Any] | None, now: float, *, whole: bool
    ) -> tuple[tuple[Entry, ...], Segment]:
        """The entries of a commit in order: what was due, the checkpoint, the marks."""
        segment, run, fence = self.segment, self.run, self.fence
        entries: list[Entry] = []
        before = b""
        if progress is None or self.marks_due:
            before = dumps(self.cursor if self.said is None else {**self.cursor, "progress": self.said})
        cursor = before if progress is None else dumps(progress.cursor)
        for kind, mark in self.marks_due:
            seq = self.seq + len(entries) + 1
            entries.append(seal(run, seq, kind, fence, now, before, dumps(mark)))
        if progress is None and whole:
            progress, cursor = Progress(self.tree, self.cursor, ()), dumps(self.cursor)
        if progress is not None:
            seq = self.seq + len(entries) + 1
            entry, segment = self._checkpoint(seq, progress, extra, now, whole=whole)
            entries.append(entry)
        for kind, mark in marks:
            entries.append(seal(run, self.seq + len(entries) + 1, kind, fence, now, cursor, dumps(mark)))
        return tuple(entries), segment

    def _checkpoint(
        self, seq: int, progress: Progress, extra: dict[str, Any] | None, now: float, *, whole: bool = False
    ) -> tuple[Entry, Segment]:
        steps = {"steps": told(progress.steps, now)}
        body, segment = self.segment.next(
            seq,
            self.tree,
            progress.tree,
            self.branch,
            {**steps, **extra} if extra else steps,
            progress.change,
            self.beside,
            self.pending,
            whole=whole,
        )
        return seal(self.run, seq, _CHECKPOINT, self.fence, now, dumps(progress.cursor), body), segment

    def _change(
        self,
        fields: dict[str, Any],
        status: RunStatus | None,
        segment: Segment,
        now: float,
        *,
        under_way: bool,
        stepped: bool,
    ) -> HeadChange | None:
        """The head is touched only when something of it changes: that spares most steps a second write."""
        if status is None and under_way and self.status not in (_RUNNING, RunStatus.PENDING):
            status = _RUNNING
        if status is not None and status != self.status:
            check_transition(self.status, status)
            fields["status"] = status
        if status is not None and status != _RUNNING:
            fields["owner"] = None
            fields["ended_at"] = now if status in ENDED else None
        elif status is not None and self.started_at is None:
            fields["started_at"] = now
        if "status" in fields and self.status in _NOT_BEGUN:
            fields.setdefault("wake_at", None)  # it is due, or begun
        if self._waited and (stepped or status in ENDED):
            fields.setdefault("waiting_for", None)
        if segment.base != self.segment.base:
            fields["base"] = segment.base
        return HeadChange(**fields) if fields else None

    def _count(self, landed: Landed) -> None:
        """What was written is now what the store holds."""
        entries, progress = landed.entries, landed.progress
        if progress is not None:
            self.tree, self.cursor, self.said = progress.tree, progress.cursor, None
            if landed.change is None and len(entries) == 1:
                self.written, self.segment = entries, landed.segment
                self.seq = self.checkpoint_seq = entries[0].seq
                return
        for entry in entries:
            if entry.kind != _CHECKPOINT:
                self._count_beside(entry)
        if landed.segment.base != self.segment.base:
            self.beside = 0
        self.written, self.segment = entries, landed.segment
        if self.marks_due:
            self.marks_due = ()
        if self.fields_due:
            self.fields_due = None
        if entries:
            self.seq = entries[-1].seq
        if progress is not None:
            self.checkpoint_seq = last_checkpoint(entries).seq
        if landed.change is None:
            return
        for name in ("status", "attempt", "floor", "started_at"):
            value = getattr(landed.change, name)
            if value is not UNSET:
                setattr(self, name, value)
        if landed.change.waiting_for is not UNSET:
            self._waited = landed.change.waiting_for is not None
        if landed.change.owner is not UNSET:
            self.closed = self.given_up = True

    def _count_beside(self, entry: Entry) -> None:
        self.beside += len(entry.body)
        if entry.kind == _SIGNAL:
            self.pending = with_signal(self.pending, entry.seq, msgspec.json.decode(entry.body))
        elif entry.kind == _RECEIVED:
            received = msgspec.json.decode(entry.body)["signal"]
            self.pending = tuple(signal for signal in self.pending if signal.seq != received)
