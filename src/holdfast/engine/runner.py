"""Drives one run: honour what is wanted of it, advance one step, commit, again.

Every kind of flow is driven by this. The order around a step is what makes a run durable:

    its state and position are on disk  →  the step runs on a copy  →  one commit  →  the next step

Dying before the commit runs the step again from the same state with the same idempotency key;
dying after it never does.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.context import RunContext, set_current
from holdfast.core.codec import Codec, Tree, dumps
from holdfast.core.events import events_of, when
from holdfast.core.ids import storable
from holdfast.core.policy import CheckpointPolicy, seconds
from holdfast.core.retry import RetryPolicy
from holdfast.engine.control import Control
from holdfast.engine.retention import Retention
from holdfast.engine.scope import StepRaised, StepScope, within
from holdfast.engine.writer import Mark, Progress, RunWriter, StepTaken
from holdfast.errors import (
    HoldfastError,
    OwnershipLostError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunPausedError,
    StepMissingError,
    StoreError,
)
from holdfast.flows.base import NO_RESULT, Flow, Position, Step
from holdfast.model import Event, Kind, RunStatus
from holdfast.store.base import Store


class Surroundings(Protocol):
    """What a runner needs of the engine."""

    store: Store
    clock: Clock
    observed: bool

    def emit(self, event: Event) -> None:
        """Show an event to whoever watches."""
        ...


class Outcome:
    """How a run left this process: with a result, or with the error that says what became of it."""

    __slots__ = ("error", "result")

    def __init__(self, result: Any = None, error: HoldfastError | None = None) -> None:
        self.result, self.error = result, error


class _Cut(Exception):
    """The step under way was given up because the run is to stop."""


class Runner:
    """One run, from where it stands to where it leaves this process."""

    def __init__(
        self,
        around: Surroundings,
        flow: Flow[Any],
        codec: Codec,
        writer: RunWriter,
        scope: StepScope,
        *,
        policy: CheckpointPolicy,
        retry: RetryPolicy,
        metadata: dict[str, Any],
        nonce: str,
        failures: int = 0,
        retry_at: float = 0.0,
        retention: Retention | None = None,
    ) -> None:
        self._around, self._flow, self._codec, self.writer, self._scope = around, flow, codec, writer, scope
        self._policy, self._retry, self._metadata, self._nonce = policy, retry, metadata, nonce
        self._retention = retention
        self._failures, self._retry_at = failures, retry_at
        self._tree: Tree = writer.tree
        self._cursor: dict[str, Any] = writer.cursor
        self._unsaved: list[StepTaken] = []
        self._shown = 0
        """How many of those have been shown as completed."""
        self._result: Any = NO_RESULT
        self._saved_at = around.clock.now()
        self._takeups = writer.attempt
        self._task: asyncio.Task[Any] | None = None
        self._in_step = self._told_to_stop = False
        self._wake: asyncio.Future[None] | None = None
        self.control = Control()
        self.control.notify = self._notified

    # The loop

    async def drive(self) -> Outcome:
        """Go on until the run ends, is stopped, or is lost to another owner."""
        self._task = asyncio.current_task()
        try:
            while self._cursor["next"] is not None:
                left = await self._honour() if self.control.wanted else None
                left = left or await self._advance()
                if left is not None:
                    return left
            # A cancel that came during the last step is final too.
            return await (self._complete() if self.control.cancel is None else self._cancel())
        except _Cut:
            return await self.interrupt()
        except StepMissingError as error:
            await self.interrupt()
            return Outcome(error=error)
        except (OwnershipLostError, StoreError) as error:
            self.writer.closed = True
            return Outcome(error=error)
        finally:
            self._scope.give_lane_back()

    async def _advance(self) -> Outcome | None:
        """One step with its retries. An outcome when the run leaves this process by it."""
        step, name = self._step()
        while True:
            if self._retry_at:
                await self._wait_until(self._retry_at)
            if self.control.wanted:
                return None
            started = self._around.clock.now()
            self._live("step_started", started, step=name)
            try:
                position, tree = await self._attempt(step, name)
            except _Cut:
                if self.control.cut:
                    raise
                return None
            except StepRaised as raised:
                error: BaseException = raised.error
            except (GeneratorExit, asyncio.CancelledError):
                raise  # the loop is ending: the step did not fail, it was cut off
            except BaseException as raised:
                error = raised
            else:
                return await self._arrived(position, tree, (name, started, self._around.clock.now()))
            if self.control.cancel is not None:
                return None  # that is final, however the step ended
            left = await self._failed(step, name, started, error)
            if left is not None:
                return left

    def _step(self) -> tuple[Step[..., Any], str]:
        name = self._cursor["next"]
        step = self._flow.next_step(self._cursor)
        if step is None:
            raise StepMissingError(self.writer.run, self._flow.name, name, self._flow.step_names)
        return step, name

    async def _attempt(self, step: Step[..., Any], name: str) -> tuple[Position, Tree]:
        """One call of the step, on a copy of the state that only this attempt sees."""
        position = Position(self._copy(), self._cursor)
        set_current(self._context(step, name))
        self._in_step, self._told_to_stop = True, False
        try:
            work = self._flow.advance(position, self._scope)
            after = await (work if step.timeout is None else within(step.timeout, name, work))
        except asyncio.CancelledError:
            if not (self.control.cancel or self.control.cut):
                raise self._foreign_cancel() from None
            assert self._task is not None
            self._task.uncancel()
            raise _Cut from None
        finally:
            self._in_step = False
        if self._told_to_stop:
            raise _Cut  # it was, and returned all the same: that came too late
        tree = self._codec.encode(after.state, like=self._tree)
        if after.result is not NO_RESULT:
            self._result = self._codec.encode(after.result, path="result")
        return after, tree

    def _copy(self) -> Any:
        """The state in containers of its own. What was saved and held no marks is not searched for them."""
        plain = self._tree is self.writer.tree and self.writer.segment.plain
        return self._codec.decode(self._tree, plain=plain)

    def _foreign_cancel(self) -> BaseException:
        """A CancelledError that this runtime did not ask for: the loop is ending, or the step raised it."""
        assert self._task is not None
        if self._task.cancelling():
            return asyncio.CancelledError()
        return StepRaised(asyncio.CancelledError("the step was cancelled from inside"))

    # What follows a step

    async def _arrived(self, position: Position, tree: Tree, taken: StepTaken) -> Outcome | None:
        """The step is done: save it if the policy says so. The end of the run is saved by `_complete`."""
        self._tree, self._cursor = tree, position.cursor
        self._unsaved.append(taken)
        self._failures, self._retry_at, self._takeups = 0, 0.0, 1
        if self._cursor["next"] is None:
            return None
        elapsed = abs(taken[2] - self._saved_at)  # a clock that was set back must not put saving off
        if not self._policy.saves(steps=len(self._unsaved), elapsed=elapsed, step=taken[0]):
            self._completed(taken)
            return None
        try:
            await self._write()
        except StoreError as error:
            if self._policy.on_save_error == "raise":
                raise
            # The window is not used up: the next step tries again.
            self._completed(taken)
            self._live("save_failed", self._around.clock.now(), step=taken[0], error=str(error))
        return None

    async def _failed(self, step: Step[..., Any], name: str, started: float, error: BaseException) -> Outcome | None:
        """Write the failed attempt down; an outcome when there is no other."""
        self._failures += 1
        retry = step.retry or self._retry
        shown = _describe(error)
        mark = {"step": name, "attempt": self._failures, "started": started, "error": shown}
        if retry.retries(error, self._failures):
            self._retry_at = self._around.clock.now() + retry.delay(self._failures, random.random)
            await self._write([(Kind.ATTEMPT_FAILED, {**mark, "retry_at": self._retry_at})])
            return None
        trace = storable("".join(traceback.format_exception(error)[-20:]))
        outcome = await self.fail([(Kind.ATTEMPT_FAILED, mark)], name, shown, trace)
        assert outcome.error is not None
        outcome.error.__cause__ = error  # here it is still known; elsewhere only its text is
        return outcome

    async def fail(self, marks: list[Mark], step: str, error: str, trace: str | None = None) -> Outcome:
        """End the run as failed."""
        body = {"step": step, "error": error, **({"trace": trace} if trace else {})}
        shown = dumps({"step": step, "error": error})
        await self._leave(RunStatus.FAILED, [*marks, (Kind.FAILED, body)], error=shown)
        return Outcome(error=RunFailedError(self.writer.run, step, error))

    async def _complete(self) -> Outcome:
        body = {} if self._result is NO_RESULT else {"result": self._result}
        await self._leave(RunStatus.COMPLETED, [(Kind.COMPLETED, body)])
        return Outcome(self._copy() if self._result is NO_RESULT else self._codec.decode(self._result, path="result"))

    # What others want

    async def _honour(self) -> Outcome | None:
        """Do what is wanted of the run at this safe point; an outcome when it leaves."""
        control = self.control
        if control.cancel is not None:
            return await self._cancel()
        if control.pause is not None:
            await self._leave(RunStatus.PAUSED, [(Kind.PAUSED, {})], attempt=0)
            return Outcome(error=RunPausedError(self.writer.run))
        if control.stop:
            return await self.interrupt()
        asked = control.take_checkpoints()
        await self._write(extra={"asked": [mail.key for mail in asked]}, take=tuple(mail.id for mail in asked))
        return None

    async def _cancel(self) -> Outcome:
        """End the run as cancelled. What is finished is saved with it: a fork does not do it again."""
        reason = self.control.reason
        error = None if reason is None else dumps({"step": None, "error": reason})
        await self._leave(RunStatus.CANCELLED, [(Kind.CANCELLED, {"reason": reason})], error=error)
        return Outcome(error=RunCancelledError(self.writer.run, reason))

    async def interrupt(self) -> Outcome:
        """Hand the run back with all that it has done so far."""
        await self._leave(RunStatus.INTERRUPTED, [(Kind.INTERRUPTED, {})], attempt=0)
        return Outcome(error=RunInterruptedError(self.writer.run))

    def _notified(self) -> None:
        """Something is wanted: end a wait at once, and an async step when the run is to stop in it."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        cuts = self.control.cut or (self.control.cancel is not None and self._scope.interruptible)
        if self._in_step and cuts and self._task is not None:
            self._told_to_stop = True
            self._task.cancel()

    async def _wait_until(self, moment: float) -> None:
        """Wait for the moment, or until something is wanted of the run."""
        delay = moment - self._around.clock.now()
        if delay <= 0:
            return
        self._scope.give_lane_back()
        sleeping = asyncio.ensure_future(self._around.clock.sleep(delay))
        try:
            await self._wanted_or(sleeping)
        finally:
            sleeping.cancel()

    async def queue_for(self, turn: asyncio.Future[Any]) -> None:
        """Wait for the turn, or until the run is to leave; checkpoints asked for meanwhile are made."""
        while not (turn.done() or self.control.leaves):
            if self.control.wanted:
                await self._honour()
            else:
                await self._wanted_or(turn)

    async def _wanted_or(self, other: asyncio.Future[Any]) -> None:
        """Wait for the other, or until something is wanted of the run."""
        if self.control.wanted:
            return
        self._wake = waking = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({other, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

    # Writing

    async def _write(
        self, marks: list[Mark] | None = None, *, extra: dict[str, Any] | None = None, take: tuple[int, ...] = ()
    ) -> None:
        """Commit what is not saved yet, with the marks."""
        writer = self.writer
        fields: dict[str, Any] = {}
        progress = self._progress(always=extra is not None)
        if progress is not None and self._retention is not None:
            floor = self._retention.floor(writer.seq + len(writer.marks_due) + 1, self._around.clock.now())
            if floor != writer.floor:
                fields["floor"] = floor
        mail = await writer.write(marks or [], progress=progress, extra=extra, take=take, **fields)
        self._wrote(saved=progress is not None)
        if mail:
            self.control.deliver(mail)
        if self._retention is not None:
            self._retention.added(writer.written)
            entry = await self._retention.compacted(self._around.store, writer.run, writer.floor)
            if entry is not None:
                await writer.replace_history(entry)

    async def _leave(self, status: RunStatus, marks: list[Mark], **fields: Any) -> None:
        """The last commit of this process for the run: everything saved, the run given up."""
        progress = self._progress()
        policy, ended = self._policy, status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
        ttl = seconds(policy.ttl)
        if ttl is not None:
            fields["expires_at"] = self._around.clock.now() + ttl
        if progress is not None and self._retention is not None:
            seq = self.writer.seq + len(self.writer.marks_due) + 1
            fields["floor"] = self._retention.floor(seq, self._around.clock.now())
        drop = ended and policy.deletes_history(success=status == RunStatus.COMPLETED)
        await self.writer.write(
            marks, progress=progress, status=status, take=self.control.mail_ids(), drop_history=drop, **fields
        )
        self._wrote(saved=progress is not None)

    def _progress(self, *, always: bool = False) -> Progress | None:
        return Progress(self._tree, self._cursor, self._unsaved) if self._unsaved or always else None

    def _wrote(self, *, saved: bool) -> None:
        shown_already, self._shown = (self._shown, 0) if saved else (0, self._shown)
        if saved:
            self._unsaved = []
            self._saved_at = self.writer.written[-1].at
        if self._around.observed:
            for entry in self.writer.written:
                # A step's start was shown when it started, and so was the end of a step that was not saved.
                shown = [e for e in events_of(self.writer.run, entry) if e.type not in ("step_started", "resumed")]
                completed = [e for e in shown if e.type == "step_completed"]
                for event in shown:
                    if event not in completed[:shown_already]:
                        self._around.emit(event)

    def _completed(self, taken: StepTaken) -> None:
        """Show the end of a step that is not saved yet."""
        self._shown += 1
        self._live("step_completed", taken[2], step=taken[0])

    def _live(self, kind: str, at: float, **fields: Any) -> None:
        if self._around.observed:
            self._around.emit(Event(type=kind, run=self.writer.run, seq=None, time=when(at), **fields))

    def _context(self, step: Step[..., Any], name: str) -> RunContext:
        writer = self.writer
        deadline = None if step.timeout is None else when(self._around.clock.now() + step.timeout)
        place = (self._nonce, writer.branch, self._cursor["step"])
        attempt = self._failures + self._takeups
        return RunContext(writer.run, self._flow.name, name, attempt, self._metadata, deadline, place)


def _describe(error: BaseException) -> str:
    """What went wrong, as text that can be stored whatever the error says of itself."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    return storable(f"{name}: {text}"[:4000] if text else name)
