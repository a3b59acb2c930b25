"""What the code inside a run's steps reaches of the run, made when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import Clock
from holdfast.context import RunContext
from holdfast.core.codec import Codec, dumps
from holdfast.core.events import when
from holdfast.core.journal import Journal
from holdfast.core.retry import RetryPolicy
from holdfast.engine.hands import Hands
from holdfast.engine.inbox import Inbox
from holdfast.engine.info import Info
from holdfast.engine.notes import Notes
from holdfast.engine.surroundings import Children
from holdfast.engine.writer import RunWriter
from holdfast.errors import HoldfastError, NotLoadableError, OwnershipLostError
from holdfast.frames import Frame
from holdfast.model import Head, Kind, Mail, Posted

if TYPE_CHECKING:
    from holdfast.engine.runner import Runner


class RunHost(msgspec.Struct, eq=False):
    """Belongs to one live run and outlives the attempts of its steps."""

    _runner: Runner
    writer: RunWriter
    clock: Clock
    codec: Codec
    hands: Hands
    head: Head
    begun_journal: Journal | None
    """What was already done inside the step under way, once there may be anything."""
    begun_notes: Notes | None = None
    """What writes while a step is under way, once there has been anything to write."""
    _inbox: Inbox | None = None
    _memo: dict[str, Any] | None = None
    _declared: set[Any] | None = None
    _said: tuple[dict[str, Any], str] | None = None

    @property
    def pid(self) -> int:
        """The process in which the run is driven."""
        return self._runner.around.pid

    @property
    def children(self) -> Children:
        """The child runs of runs."""
        return self._runner.around.children

    @property
    def failures(self) -> dict[str, type[BaseException]]:
        """The exceptions that come back from a log as themselves, by their names."""
        return self._runner.around.registry.failures

    @property
    def retry(self) -> RetryPolicy:
        """What counts for steps that say nothing of being tried again."""
        return self._runner.retry

    @property
    def skips_saves(self) -> bool:
        """Whether the policy may leave a step unsaved."""
        return self._runner.saving.policy.skips

    @property
    def memo(self) -> dict[str, Any]:
        """What the flow keeps in memory for as long as the run is live here."""
        if self._memo is None:
            self._memo = {}
        return self._memo

    @property
    def journal(self) -> Journal:
        """What was already done inside the step under way."""
        if self.begun_journal is None:
            self.begun_journal = Journal()
        return self.begun_journal

    @property
    def notes(self) -> Notes:
        """What writes while a step is under way."""
        if self.begun_notes is None:
            self.begun_notes = Notes(self.writer, self._runner.saving.noted, self._runner.broken)
            if self._runner.scope is not None:  # what its code writes is written as it comes
                self.begun_notes.step_begins()
        return self.begun_notes

    @property
    def inbox(self) -> Inbox:
        """What others sent."""
        if self._inbox is None:
            self._inbox = Inbox(self.writer.run, self.notes, self.writer.pending, self.clock)
        return self._inbox

    @property
    def has_inbox(self) -> bool:
        """Whether anything was sent to the run."""
        return self._inbox is not None or bool(self.writer.pending)

    @property
    def holds_calls(self) -> bool:
        """Whether the run is to leave, so that no further call begins."""
        return self._runner.control.leaves and self._runner.flow_suspends

    @property
    def hurries(self) -> bool:
        """Whether the run is to leave as soon as nothing is under way."""
        return self._runner.control.leaves

    def context(self, frame: Frame) -> RunContext:
        """What `current_run()` gives in that frame."""
        runner, writer = self._runner, self.writer
        if self._said is None:
            info = msgspec.json.decode(self.head.info, type=Info)
            self._said = msgspec.json.decode(self.head.metadata), info.nonce
        metadata, nonce = self._said
        return RunContext(
            id=writer.run,
            flow=runner.flow_name,
            step=runner.cursor["next"],
            attempt=runner.attempt,
            metadata=metadata,
            deadline=None if frame.deadline is None else when(frame.deadline),
            place=(nonce, writer.branch, runner.cursor["step"]),
            call=frame.call,
            frame=frame,
        )

    def let_go(self) -> None:
        """Stop the body that is under way: all that it does is wait."""
        self._runner.let_go()

    def failed(self, error: HoldfastError) -> None:
        """The run cannot be written: end the attempt."""
        self._runner.broken(error)

    def unfit(self, error: NotLoadableError) -> None:
        """The program does not fit what is stored: the run stops where it stands, and no attempt of it has failed."""
        self._runner.unfit(error)

    def declare(self, annotation: Any) -> None:
        """Values of these types may be stored and built."""
        if annotation is None:
            return
        self._declared = self._declared or set()
        try:
            if annotation in self._declared:
                return
            self._declared.add(annotation)
        except TypeError:
            pass  # not hashable: looked at every time
        self.codec.register(annotation)

    def tell_changed(self, key: str, name: str, before: str, now: str) -> None:
        """A call was found with other arguments than it was made with."""
        body = {"key": key, "name": name, "before": before, "now": now}
        self.notes.put(Kind.CALL_CHANGED, body, soon=False)

    def show(self, kind: str, **fields: Any) -> None:
        """Show something to whoever watches, before it is durable."""
        self._runner.saving.show(kind, self.clock.now(), step=self._runner.cursor["next"], **fields)

    def deliver(self, mail: list[Mail]) -> None:
        """Take in what others sent."""
        self.inbox.deliver(mail)

    async def look(self) -> None:
        """Ask for the mail."""
        self._runner.control.deliver(await self.writer.look())

    async def post(self, kind: str, ask: str) -> bool:
        """Post mail about a question to this very run; False when it was answered before."""
        mail = Mail(kind, dumps({"ask": ask}), key=f"answer-{ask}")
        return await self._runner.around.store.post_mail(self.writer.run, mail) is Posted.ACCEPTED

    def left(self) -> None:
        """The run has left this process."""
        if self.begun_notes is not None:
            self.begun_notes.end(OwnershipLostError(self.writer.run, self.writer.fence, "given up"))

    async def finish_step(self, number: int) -> None:
        """The body of the step is done: what is still to be written goes with the step's own commit."""
        marks = []
        if self.begun_notes is not None:
            marks = await self.begun_notes.hand_over()
        if self.begun_journal is not None:
            unasked, chunks = self.begun_journal.unasked(number), self.begun_journal.left_over(number)
            if unasked:
                marks.append((Kind.CALLS_UNASKED, {"keys": unasked[:100], "count": len(unasked)}))
            if chunks:
                marks.append((Kind.SUPERSEDED, {"seqs": chunks}))
                self.show("superseded", data={"seqs": chunks})
            self.begun_journal.finish(number)
        self.writer.marks_due += tuple(marks)

    async def settle(self) -> None:
        """Return when everything is written that the code inside has left to be written."""
        if self.begun_notes is not None:
            await self.begun_notes.settle()
