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
from typing import Any

from holdfast.context import enter, leave
from holdfast.core.codec import Codec, Tree
from holdfast.core.failures import describe
from holdfast.core.ids import storable
from holdfast.core.journal import Journal
from holdfast.core.policy import CheckpointPolicy
from holdfast.core.retry import RetryPolicy
from holdfast.engine import leaving
from holdfast.engine.control import Control
from holdfast.engine.hands import Hands, StepRaised, in_frame, within
from holdfast.engine.host import RunHost
from holdfast.engine.leaving import Outcome
from holdfast.engine.retention import Retention
from holdfast.engine.saving import Saving
from holdfast.engine.scope import StepScope
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.waits import Waits
from holdfast.engine.writer import RunWriter
from holdfast.errors import (
    HoldfastError,
    NotLoadableError,
    OwnershipLostError,
    StepMissingError,
    StoreDamagedError,
    StoreError,
)
from holdfast.flows.base import KEEP, NO_RESULT, FinalFailure, Flow, Position, Step
from holdfast.frames import Frame
from holdfast.model import Head, Kind, Mail


class _Cut(Exception):
    """The step under way was given up because the run is to stop."""


class _LetGo(Exception):
    """The step under way does nothing but wait: the run is let go."""


class _Unfit(Exception):
    """What is stored does not fit the types of the program: no step has failed, and one that fits can go on."""

    def __init__(self, error: NotLoadableError) -> None:
        self.error = error


class Runner:
    """One run, from where it stands to where it leaves this process."""

    _task: asyncio.Task[Any] | None  # all is set at once, as in RunWriter
    scope: StepScope | None
    """The attempt under way."""
    came_to: dict[str, Any]
    """What a step ended the run with, if one did."""
    _verdict: Exception | None
    """Why whatever the attempt under way comes to does not count."""
    _waits: Waits | None
    """What the last attempt waited for."""

    def __init__(
        self,
        around: Surroundings,
        flow: Flow[Any],
        codec: Codec,
        writer: RunWriter,
        hands: Hands,
        head: Head,
        *,
        policy: CheckpointPolicy,
        retry: RetryPolicy,
        journal: Journal | None = None,
        failures: int = 0,
        retry_at: float = 0.0,
        retention: Retention | None = None,
    ) -> None:
        self.around, self._flow, self._codec, self.writer, self._hands = around, flow, codec, writer, hands
        self.retry, self._failures, self._retry_at = retry, failures, retry_at
        self._takeups, self.came_to = writer.attempt if writer.started_at is not None else 1, writer.came_to
        self._raw_state, self._cancelled = getattr(flow, "raw_state", False), False
        self._task = self.scope = self._verdict = self._waits = None
        self.control = Control(self)
        self.host = RunHost(self, writer, around.clock, codec, hands, head, journal)
        self.saving = Saving(around, writer, self.control, policy, retention, self.host)
        self.saving.watcher = getattr(flow, "observe", None)

    @property
    def cursor(self) -> dict[str, Any]:
        """What comes next."""
        return self.saving.cursor

    @property
    def flow_name(self) -> str:
        """The name of the flow."""
        return self._flow.name

    @property
    def flow_suspends(self) -> bool:
        """Whether the flow's step is a whole body of journaled calls, which may leave between any two of them."""
        return bool(getattr(self._flow, "suspends", False))

    @property
    def attempt(self) -> int:
        """1 for the first attempt of the step, one more for each that failed or was cut off by a crash."""
        return self._failures + self._takeups

    @property
    def crashes(self) -> int:
        """How often the run was taken up for nothing since it last went on."""
        return min(self._takeups, self.writer.attempt) - 1

    # The loop

    async def drive(self) -> Outcome:
        """Go on until the run ends, is stopped, or is lost to another owner."""
        self._task = asyncio.current_task(self.around.loop)
        try:
            while self.saving.cursor["next"] is not None:
                left = await self._honour() if self.control.wanted else None
                left = left or await self._advance()
                if left is not None:
                    return left
                if self.saving.due is not None:
                    await self.saving.save(self.saving.due)
            # A cancel that came during the last step is final too.
            return await (leaving.completed(self) if self.control.cancel is None else leaving.cancelled(self))
        except _Cut:
            return await leaving.stopped(self)
        except StepMissingError as error:
            await leaving.stopped(self)
            return Outcome(error=error)
        except _Unfit as unfit:
            await leaving.stopped(self)
            return Outcome(error=unfit.error)
        except (OwnershipLostError, StoreError) as error:
            self.writer.closed = True
            return Outcome(error=error)
        finally:
            self._hands.give_lane_back()
            self.host.left()

    async def _advance(self) -> Outcome | None:
        """One step with its retries. An outcome when the run leaves this process by it."""
        cursor, now = self.saving.cursor, self.around.clock.now
        name: str = cursor["next"]
        step = self._flow.next_step(cursor)
        if step is None:
            raise StepMissingError(self.writer.run, self._flow.name, name, self._flow.step_names)
        while True:
            if self._retry_at:
                await self._wait_until(self._retry_at)
            if self.control.wanted:
                return None
            started = now()
            if self.around.observed:
                self.saving.show("step_started", started, step=name)
            try:
                after, tree, change = await self._attempt(step, name, cursor)
            except _Cut:
                if self.control.cut:
                    raise
                return None
            except _LetGo:
                assert self._waits is not None
                return await leaving.let_go(self, self._waits)
            except _Unfit:
                raise
            except HoldfastError as unwritten:
                if unwritten is self._verdict:
                    raise
                error: BaseException = unwritten  # of another store, which the step itself uses
            except StepRaised as raised:
                error = raised.error
            except (GeneratorExit, asyncio.CancelledError):
                raise  # the loop is ending: the step did not fail, it was cut off
            except BaseException as raised:
                error = raised
            else:
                self._failures, self._retry_at, self._takeups = 0, 0.0, 1
                self.saving.step_done(tree, after, (name, started, now()), change)
                return None
            if self.control.cancel is not None:
                return None  # that is final, however the step ended
            left = await self._failed(step, name, started, error)
            if left is not None:
                return left

    async def _attempt(
        self, step: Step[..., Any], name: str, cursor: dict[str, Any]
    ) -> tuple[dict[str, Any], Tree, list[Any] | None]:
        """One call of the step, on a copy of the state that only this attempt sees: where it leads to."""
        saving, host, task = self.saving, self.host, self._task
        position = Position(saving.tree if self._raw_state else self._copy_for_step(), cursor)
        number: int = cursor["step"]
        self._verdict = None
        self.scope = scope = StepScope(host, number, self.around.loop)
        scope.root = root = Frame(scope, f"{number}/")
        if step.timeout is not None:
            root.deadline = self.around.clock.now() + step.timeout
        before = enter(root, task)
        if host.begun_notes is not None:
            host.begun_notes.step_begins()
        try:
            work = self._flow.advance(position, scope)
            if step.timeout is None:
                after = await work
            else:
                after = await within(step.timeout, name, self.writer.run, in_frame(root, work), scope.close)
            if task is not None and task.cancelling():
                await asyncio.sleep(0)  # a cancel that the step has not waited for comes out here, not in the commit
            if scope.starting or scope.unspawned:
                await scope.children_started()  # before the step is done
        except asyncio.CancelledError:
            if self._verdict is None:
                raise self._foreign_cancel() from None
        finally:
            self.scope, self._waits = None, scope.waits
            if host.begun_notes is not None:
                host.begun_notes.step_ended()
            scope.end(task)
            if self._cancelled:
                self._uncancel()
            if self._verdict is not None:
                raise self._verdict  # whatever the step did about it came too late
        leave(before)
        tree, change, state = saving.tree, after.change, after.state
        if state is not KEEP:
            tree = state if change is not None else self._codec.encode(state, like=tree)
        if after.result is not NO_RESULT:
            self.came_to = {"result": self._codec.encode(after.result, path="result")}
        # Only now is the attempt known not to fail: one that cannot be stored is tried again with its calls.
        if host.begun_journal is not None or host.begun_notes is not None:
            await host.finish_step(number)
        return after.cursor, tree, change  # the copy is let go before the commit is waited for

    def _stop_body(self, verdict: Exception) -> None:
        """End the attempt under way: whatever it comes to does not count."""
        scope = self.scope
        if scope is None or self._verdict is not None or self._task is None:
            return
        self._verdict = verdict
        scope.close()
        scope.cancel_tasks(but=self._task)
        # Code in a thread cannot be cancelled: it unwinds at its next verb, or is left behind when it is in a hurry.
        if self._hands.interruptible or self.control.cut:
            self._cancelled = True
            self._task.cancel()

    def _uncancel(self) -> None:
        assert self._task is not None
        self._cancelled = False
        self._task.uncancel()

    def let_go(self) -> None:
        """The code under way does nothing but wait."""
        self._stop_body(_LetGo())

    def broken(self, error: HoldfastError) -> None:
        """What the run did could not be written, or what came for it not be read: it stops where it stands."""
        self._stop_body(error)

    def unfit(self, error: NotLoadableError) -> None:
        """What the step had come to before does not fit the program: the run stops where it stands."""
        self._stop_body(_Unfit(error))

    def _copy(self) -> Any:
        """The state in containers of its own. What was saved and held no marks is not searched for them."""
        plain = self.saving.tree is self.writer.tree and self.writer.segment.plain
        return self._codec.decode(self.saving.tree, plain=plain)

    def _copy_for_step(self) -> Any:
        """The same for a step that is about to begin: one that cannot be given its state has not failed."""
        try:
            return self._copy()
        except NotLoadableError as error:
            raise _Unfit(error) from error

    def _foreign_cancel(self) -> BaseException:
        """A CancelledError that this runtime did not ask for: the loop is ending, or it is the step's own doing."""
        assert self._task is not None
        if self._task.cancelling() and self.around.ending.begun:
            return asyncio.CancelledError()
        return StepRaised(asyncio.CancelledError("the step was cancelled from inside"))

    def part(self) -> None:
        """The run has left for good: only what it came to is asked for from now on.

        Otherwise its parts keep each other, and with them its state, until a collection finds them. That may be long
        after: Python seldom looks at what has lived for a while, and does not know how large it is.
        """
        self.control.part()
        self.saving.part()
        self._waits = self._verdict = None
        del self.host

    # What follows a step

    async def _failed(self, step: Step[..., Any], name: str, started: float, error: BaseException) -> Outcome | None:
        """Write the failed attempt down; an outcome when there is no other."""
        final = isinstance(error, FinalFailure)
        if isinstance(error, FinalFailure):
            error = error.error
        self._failures += 1
        await self.host.settle()
        if self.host.begun_journal is not None:
            self.host.begun_journal.new_attempt()
        retry = step.retry or self.retry
        shown = describe(error)
        mark = {"step": name, "attempt": self._failures, "started": started, "error": shown}
        if not final and retry.retries(error, self._failures):
            self._retry_at = self.around.clock.now() + retry.delay(self._failures, random.random)
            await self.saving.write([(Kind.ATTEMPT_FAILED, {**mark, "retry_at": self._retry_at})])
            return None
        trace = storable("".join(traceback.format_exception(error)[-20:]))
        outcome = await leaving.failed(self, [(Kind.ATTEMPT_FAILED, mark)], name, shown, trace)
        assert outcome.error is not None
        outcome.error.__cause__ = error  # here it is still known; elsewhere only its text is
        return outcome

    def result(self) -> Any:
        """What a completed run came to, in containers of its own."""
        return self._codec.decode(self.came_to["result"], path="result") if self.came_to else self._copy()

    def ended_as(self, head: Head) -> bool:
        """Whether the run came to this here, and nothing has become of it since."""
        writer = self.writer
        return (writer.status, writer.fence, writer.seq) == (head.status, head.fence, head.seq)

    # What others want

    async def _honour(self) -> Outcome | None:
        """Do what is wanted of the run at this safe point; an outcome when it leaves."""
        if self.control.leaves:
            return await leaving.stopped(self)
        asked = self.control.take_checkpoints()
        await self.saving.write(extra={"asked": [mail.key for mail in asked]}, take=tuple(mail.id for mail in asked))
        return None

    def deliver(self, mail: list[Mail]) -> None:
        """There is mail for the code of the run. What cannot be read stops it; whoever brought that goes on."""
        try:
            self.host.deliver(mail)
        except StoreDamagedError as error:
            self.broken(error)

    def notified(self) -> None:
        """Something is wanted: end an async step when the run is to stop in it."""
        if self.scope is None:
            return
        if self.control.cut or (self.control.cancel is not None and self._hands.interruptible):
            self._stop_body(_Cut())
        elif self.control.cancel is not None:
            # The thread goes on to its end or to its next verb, whichever comes first.
            self.scope.close()
            self.scope.cancel_tasks(but=self._task)
        else:
            self.scope.look_around()

    async def _wait_until(self, moment: float) -> None:
        """Wait for the moment, or until something is wanted of the run."""
        delay = moment - self.around.clock.now()
        if delay <= 0:
            return
        self._hands.give_lane_back()
        sleeping = asyncio.ensure_future(self.around.clock.sleep(delay))
        try:
            await self.control.wait(sleeping)
        finally:
            sleeping.cancel()

    async def queue_for(self, turn: asyncio.Future[Any]) -> None:
        """Wait for the turn, or until the run is to leave; checkpoints asked for meanwhile are made."""
        while not (turn.done() or self.control.leaves):
            if self.control.wanted:
                await self._honour()
            else:
                await self.control.wait(turn)
