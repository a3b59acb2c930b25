"""Where a live run has come to, what of it is not on disk yet, and how it gets there and is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.codec import Tree
from holdfast.core.durations import seconds
from holdfast.core.events import events_of, when
from holdfast.core.policy import CheckpointPolicy
from holdfast.core.transitions import ENDED
from holdfast.engine.control import Control
from holdfast.engine.host import RunHost
from holdfast.engine.progress import Mark, Progress, StepTaken
from holdfast.engine.retention import Retention
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.writer import RunWriter
from holdfast.errors import StoreError
from holdfast.model import Entry, Event, Mail, RunStatus

_COMPLETED = RunStatus.COMPLETED  # slow to find in its enum
_SHOWN_LIVE = frozenset({"step_started", "resumed", "emitted", "superseded"})


class Saving:
    """Belongs to one live run."""

    # All is set at once, as in RunWriter.
    watcher: Callable[[Event], Any] | None
    """What of the flow itself wants to know of every event that is durable."""
    _change: Sequence[Any] | None
    """What of the state has changed since it was last saved; None when that has to be searched for."""
    due: StepTaken | None
    """The step after which all that is not saved yet is to be saved now."""
    _shown: int
    """How many of those that are not saved yet have been shown as completed."""

    def __init__(
        self,
        around: Surroundings,
        writer: RunWriter,
        control: Control,
        policy: CheckpointPolicy,
        retention: Retention | None,
        host: RunHost,
    ) -> None:
        """The notes of `host` are settled, and its journal is carried on."""
        self._around, self._writer, self._control, self._host = around, writer, control, host
        self.policy, self._retention = policy, retention
        self.tree: Tree = writer.tree
        self.cursor: dict[str, Any] = writer.cursor
        self._unsaved: list[StepTaken] = []
        self._change, self._shown = (), 0
        self.due = self.watcher = None
        self._saved_at = around.clock.now()
        self._saves_all = policy.every_n_steps is None and not policy.skips

    def step_done(self, tree: Tree, cursor: dict[str, Any], taken: StepTaken, change: list[Any] | None = None) -> None:
        """The run has come to this, which is `due` if it is to be saved now. What ends the run is saved with its end.

        `change` is what the step did to the state, where it is known.
        """
        self.tree, self.cursor = tree, cursor
        self._change = None if change is None or self._change is None else (*self._change, *change)
        self._unsaved.append(taken)
        if cursor["next"] is None:
            return
        if self._saves_all or self._saves_after(taken):
            self.due = taken
        else:
            self._completed(taken)

    def _saves_after(self, taken: StepTaken) -> bool:
        """Whether the policy, which may skip saves, wants one after this step."""
        elapsed = abs(taken[2] - self._saved_at)  # a clock that was set back must not put saving off
        steps = len(self._unsaved)
        if "turn" in self.cursor:  # what lies between two turns is not counted
            saved = self._writer.cursor
            steps = self.cursor["turn"] - saved.get("turn", saved["step"])
        return self.policy.saves(steps=steps, elapsed=elapsed, step=taken[0])

    async def save(self, taken: StepTaken) -> None:
        """Commit what is not saved yet, after the step `taken`. What ends the run is saved with its end."""
        self.due = None
        if self._writer.settled:
            self._leave_out_settled()
        try:
            progress = Progress(self.tree, self.cursor, self._unsaved, self._change)
            if self._retention is None and self._host.begun_journal is None:
                mail = await self._writer.write(progress=progress)
            else:
                mail = await self._writer.write(
                    progress=progress, extra=self._carried(None), **self._new_floor(progress)
                )
            self._wrote(saved=True)
            if mail:
                self._control.deliver(mail)
            if self._retention is not None:
                await self._retain(self._retention)
        except StoreError as error:
            if self.policy.on_save_error == "raise":
                raise
            # The window is not used up: the next step tries again.
            self._completed(taken)
            self.show("save_failed", self._around.clock.now(), step=taken[0], error=str(error))

    async def write(
        self, marks: Sequence[Mark] = (), *, extra: dict[str, Any] | None = None, take: tuple[int, ...] = ()
    ) -> None:
        """Commit what is not saved yet, with the marks."""
        fields: dict[str, Any] = {}
        progress = self._progress(always=extra is not None)
        if progress is not None:
            extra, fields = self._carried(extra), self._new_floor(progress)
        mail = await self._writer.write(marks, progress=progress, extra=extra, take=take, **fields)
        self._wrote(saved=progress is not None)
        if mail:
            self._control.deliver(mail)
        if self._retention is not None:
            await self._retain(self._retention)

    async def _retain(self, retention: Retention) -> None:
        """Drop what need not be kept, where that is worth it."""
        retention.added(self._writer.written)
        await self._compact(retention)

    async def _compact(self, retention: Retention) -> None:
        writer = self._writer
        entry = await retention.compacted(self._around.store, writer.run, writer.floor)
        if entry is not None:
            await writer.replace_history(entry)

    async def leave(self, status: RunStatus, marks: list[Mark], *, take: tuple[int, ...] = (), **fields: Any) -> None:
        """The last commit of this process for the run: everything saved, the run given up."""
        if self._host.begun_notes is not None:
            await self._host.settle()
        progress = self._progress()
        ttl = seconds(self.policy.ttl)
        if ttl is not None:
            fields["expires_at"] = self._around.clock.now() + ttl
        if self._retention is not None:
            await self._compact(self._retention)  # of what was let go before: rewinds add checkpoints and save no step
        fields |= self._new_floor(progress)
        drop = status in ENDED and self.policy.deletes_history(success=status == _COMPLETED)
        await self._writer.write(
            marks,
            progress=progress,
            extra=self._carried(None) if progress is not None else None,
            status=status,
            take=(*self._control.settled_by(status), *take),
            drop_history=drop,
            **fields,
        )
        self._wrote(saved=progress is not None)

    def part(self) -> None:
        """The run has left: nothing more is saved."""
        del self._host

    def _new_floor(self, progress: Progress | None) -> dict[str, Any]:
        if self._retention is None:
            return {}
        upcoming = None if progress is None else self._writer.seq + len(self._writer.marks_due) + 1
        floor = self._retention.floor(upcoming, self._around.clock.now())
        return {} if floor in (None, self._writer.floor) else {"floor": floor}

    def _leave_out_settled(self) -> None:
        """What was saved after all by a commit that was said to have failed is not saved a second time."""
        settled, self._writer.settled = self._writer.settled, 0
        self._unsaved = self._unsaved[settled:]
        self._shown = max(self._shown - settled, 0)
        self._change = None  # it began before that commit

    def _progress(self, *, always: bool = False) -> Progress | None:
        if self._writer.settled:
            self._leave_out_settled()
        return Progress(self.tree, self.cursor, self._unsaved, self._change) if self._unsaved or always else None

    def _carried(self, extra: dict[str, Any] | None) -> dict[str, Any] | None:
        """The same with what is known of steps behind the checkpoint, which whoever goes on from it needs."""
        journal = self._host.begun_journal
        carried = journal.carried() if journal is not None else None
        return {**(extra or {}), "journal": carried} if carried else extra

    # Showing

    def noted(self, entries: Sequence[Entry], mail: tuple[Mail, ...]) -> None:
        """What the code inside a step had to write is written."""
        if self._retention is not None:
            self._retention.added(entries)
        self._show_entries(entries)
        if mail:
            self._control.deliver(mail)

    def _wrote(self, *, saved: bool) -> None:
        shown_already = 0
        if self._writer.settled:
            self._leave_out_settled()
        if saved:
            shown_already, self._shown = self._shown, 0
            self._unsaved = []
            self._change = ()
            self._saved_at = self._writer.written[-1].at
        if self._around.observed or self.watcher is not None:
            self._show_entries(self._writer.written, shown_already)

    def _show_entries(self, entries: Sequence[Entry], shown_already: int = 0) -> None:
        if self.watcher is not None:
            for entry in entries:
                for event in events_of(self._writer.run, entry):
                    self._around.tell(self.watcher, event)
        if not self._around.observed:
            return
        for entry in entries:
            # What was shown as it happened is not shown again: a step's start, the end of one not saved, a chunk.
            shown = [e for e in events_of(self._writer.run, entry) if e.type not in _SHOWN_LIVE]
            completed = [e for e in shown if e.type == "step_completed"]
            for event in shown:
                if event not in completed[:shown_already]:
                    self._around.emit(event)

    def _completed(self, taken: StepTaken) -> None:
        """Show the end of a step that is not saved yet."""
        self._shown += 1
        self.show("step_completed", taken[2], step=taken[0])

    def show(self, kind: str, at: float, **fields: Any) -> None:
        """Show something to whoever watches, before it is durable."""
        if self._around.observed:
            self._around.emit(Event(type=kind, run=self._writer.run, seq=None, time=when(at), **fields))
