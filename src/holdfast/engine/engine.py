"""All runs that are live in this process, and how a run gets in and out."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.core.events import when
from holdfast.core.journal import Journal
from holdfast.core.policy import CheckpointPolicy
from holdfast.core.retry import RetryPolicy
from holdfast.core.transitions import ENDED
from holdfast.engine import leaving
from holdfast.engine.behind import goes_on
from holdfast.engine.changes import Changes
from holdfast.engine.committer import Committer
from holdfast.engine.creating import Creating
from holdfast.engine.custody import Custody
from holdfast.engine.ending import Ending
from holdfast.engine.hands import Hands
from holdfast.engine.hurry import unless_hurried
from holdfast.engine.introducing import Introducing
from holdfast.engine.leaving import Outcome
from holdfast.engine.live import LiveRun
from holdfast.engine.observers import Observers
from holdfast.engine.ownership import Ownership
from holdfast.engine.postman import Postman
from holdfast.engine.registry import Registry
from holdfast.engine.retention import Retention
from holdfast.engine.runner import Runner
from holdfast.engine.surroundings import Children
from holdfast.engine.taking import Taking
from holdfast.engine.threads import Lanes
from holdfast.engine.trouble import Trouble
from holdfast.engine.turns import Turns
from holdfast.engine.writer import RunWriter
from holdfast.errors import (
    HoldfastError,
    NotLoadableError,
    OwnershipLostError,
    RunInterruptedError,
    RunWaitingError,
    StoreError,
    UsageError,
)
from holdfast.model import Entry, Event, Head, RunStatus
from holdfast.store.base import Store

log = logging.getLogger("holdfast")
T = TypeVar("T")
MakingRun = Coroutine[Any, Any, tuple[Head, RunWriter]]

THREADS = 64
_RUNNING, _PENDING = RunStatus.RUNNING, RunStatus.PENDING  # slow to find in their enum, and every run asks for them


class Engine:
    """Belongs to one event loop and one store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        lease: float,
        heartbeat: float,
        concurrency: int,
        policy: CheckpointPolicy | None,
        retry: RetryPolicy | None,
        crash_limit: int,
        on_event: Callable[[Event], Any] | None,
        name: str | None = None,
    ) -> None:
        self.store, self.clock = store, clock
        self.loop, self.pid = asyncio.get_running_loop(), os.getpid()
        self.ending = Ending(self.loop)
        self.registry = Registry()
        self.ownership = Ownership(store, lease=lease, heartbeat=heartbeat, name=name)
        self.live: dict[str, LiveRun] = {}
        self.committer = Committer(Introducing(store, self.ownership), lambda: len(self.live) + self.creating.coming)
        self.postman = Postman(store, self.live)
        self.custody = Custody(
            store, self.committer, clock, self.ownership, drives=self.live.__contains__, added=self.postman.send
        )
        self.postman.afterwards = self.custody.release
        self.children: Children
        self.let_go: Callable[[str, float | None], None] = lambda run, due: None
        """Is told of each run that waits outside of this process from now on, and when it is due."""
        self.unfit: Callable[[str, int, Exception], None] = lambda run, fence, error: None
        """Is told of each run that was handed back because the program does not fit it."""
        self.observed = on_event is not None
        self.closing = self.works = False
        """Whether it takes no more runs; whether it takes runs from queues."""
        self._observers = Observers(on_event)
        self.emit, self.tell = self._observers.emit, self._observers.tell
        self._changes = Changes(store)
        self.wait_change = self._changes.wait
        self.policy, self._retry = policy or CheckpointPolicy(), retry or RetryPolicy()
        self.creating, self.taking = Creating(self, concurrency), Taking(self, crash_limit)
        self.turns = Turns(concurrency)
        self._lanes = Lanes(THREADS)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._stopped_by_store = Trouble(
            "a child run was stopped by the store, and is tried again for as long as its parent is followed"
        )

    # In

    async def to_its_end(self, work: Coroutine[Any, Any, T], *, brings_in: bool = True) -> T:
        """What the work gives that brings a run in, or only changes it. Giving up the wait does not stop it half-way.

        Otherwise the run would be owned by a process that lives and does not drive it, and nobody else could.
        """
        if brings_in and self.closing:
            work.close()
            self._check_open()
        task = self._begin(work)
        task.add_done_callback(self._brought_in)
        return await asyncio.shield(task)

    def _brought_in(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; when nobody does any more, it is not reported as forgotten

    def bring_in(self, make: Callable[[], MakingRun]) -> asyncio.Future[LiveRun]:
        """The new run that is made, driven by the task that makes it: a run costs one task, not two.

        Giving up the wait does not stop it half-way either.
        """
        self._check_open()
        admitted: asyncio.Future[LiveRun] = self.loop.create_future()
        self._begin(self._drive(self._admitted(make, admitted, to_its_end=False)))
        return admitted

    def carry_out(self, make: Callable[[], MakingRun]) -> asyncio.Future[Outcome]:
        """The same, for whoever only wants to know what the run comes to."""
        self._check_open()
        outcome: asyncio.Future[Outcome] = self.loop.create_future()
        self._begin(self._drive(self._admitted(make, outcome, to_its_end=True)))
        return outcome

    def _check_open(self) -> None:
        if self.closing:
            raise UsageError("this Runtime is shutting down and starts nothing any more")

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self.loop.create_task(work)
        self._under_way.add(task)
        return task

    async def _admitted(
        self, make: Callable[[], MakingRun], waiter: asyncio.Future[Any], *, to_its_end: bool
    ) -> LiveRun | None:
        """The run that is made, None when that fails; `waiter` is told of it, or of what it comes to."""
        task = asyncio.current_task(self.loop)
        assert task is not None
        try:
            head, writer = await make()
            live = self.admit(head, writer, entries=writer.written)
        except BaseException as error:
            if not waiter.done():
                waiter.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return None
        finally:
            self._under_way.discard(task)
        live.task = task
        if to_its_end:
            live.done.tell(waiter)
        elif not waiter.done():
            waiter.set_result(live)
        return live

    def admit(self, head: Head, writer: RunWriter, **known: Any) -> LiveRun:
        """The run is live here from now on; whoever admits it drives it, as `drive` does."""
        live = self.live_run(head, writer, **known)
        self.live[head.id] = live
        if self.closing:
            live.runner.control.request_stop()
        self.postman.send()
        return live

    def drive(self, live: LiveRun) -> LiveRun:
        """Drive an admitted run in a task of its own."""
        live.task = asyncio.ensure_future(self._drive(live))
        return live

    def show(self, kind: str, run: str, **fields: Any) -> None:
        """Show an event that is not in the log to whoever watches."""
        if self.observed:
            self.emit(Event(type=kind, run=run, seq=None, time=when(self.clock.now()), **fields))

    def live_run(
        self,
        head: Head,
        writer: RunWriter,
        *,
        entries: Sequence[Entry] = (),
        failures: int = 0,
        retry_at: float = 0.0,
        journal: Journal | None = None,
    ) -> LiveRun:
        """The run as it is driven here, with what is known of it; not live yet."""
        flow, codec = self.registry.flow(head.id, head.flow)
        policy = flow.policy or self.policy
        runner = Runner(
            self,
            flow,
            codec,
            writer,
            Hands(self._lanes),
            head,
            policy=policy,
            retry=self._retry,
            journal=journal,
            failures=failures,
            retry_at=retry_at,
            retention=Retention(policy, entries) if policy.retains else None,
        )
        return LiveRun(head.id, runner, self.loop, head.parent)

    # On the way

    async def _drive(self, coming: LiveRun | Coroutine[Any, Any, LiveRun | None]) -> None:
        """Drive the run, or the one that is on its way, from its first step here to where it leaves."""
        live = coming if isinstance(coming, LiveRun) else await coming
        if live is None:
            return
        del coming  # not to be kept for as long as the run is driven
        outcome: Outcome | None = None
        held, runner = False, live.runner
        try:
            held = self.turns.take() or await self._turn(live)
            if runner.writer.status == _PENDING and not runner.control.leaves:
                # Who only waited for its turn crashed nobody.
                waited: dict[str, Any] = {} if runner.writer.attempt == 1 else {"attempt": 1}
                await runner.writer.write(status=RunStatus.RUNNING, **waited)
            outcome = await runner.drive()
        except HoldfastError as error:
            outcome = Outcome(error=error)
        except Exception as error:
            # Not of our making, e.g. a clock of the user's, or a bug: who waits is told what it was.
            why = f"driving it met an unexpected {type(error).__name__}: {error}"
            outcome = Outcome(error=RunInterruptedError(live.id, why))
            outcome.error.__cause__ = error  # type: ignore[union-attr]
        finally:
            if held:
                self.turns.give_back()
            if self.live.get(live.id) is live:
                del self.live[live.id]
            runner.part()
            self._left(live, outcome or Outcome(error=RunInterruptedError(live.id)))

    async def _turn(self, live: LiveRun) -> bool:
        """Wait for a turn, or until the run is wanted to leave, which needs none."""
        turn, held = self.turns.queue(self.loop), False
        try:
            await live.runner.queue_for(turn)
            held = turn.done()
        finally:
            if not held and not turn.cancel():
                self.turns.give_back()  # it came in the very moment in which it was not wanted any more
        return held

    def _left(self, live: LiveRun, outcome: Outcome) -> None:
        """Tell who waits; see to it that a run which could not be given up is, as soon as possible."""
        error, writer = outcome.error, live.runner.writer
        if isinstance(error, OwnershipLostError):
            log.warning("holdfast: %s", error)
            self.show("ownership_lost", live.id, error=str(error))
        elif not writer.given_up:
            self.custody.add(writer)
        if live.parent is not None:
            self._tell_of_trouble(error)
        if isinstance(error, NotLoadableError) and writer.status not in ENDED:
            self.unfit(live.id, writer.fence, error)
        if isinstance(error, RunWaitingError):
            self.let_go(live.id, outcome.due)
        elif writer.status in ENDED:
            self.tell_parent(live)
        live.done.set(outcome)

    def _tell_of_trouble(self, error: HoldfastError | None) -> None:
        """A child that the store has stopped is told to the log: who follows its parent goes on waiting."""
        if isinstance(error, StoreError):
            self._stopped_by_store.met(error)
        else:
            self._stopped_by_store.over()

    def tell_parent(self, live: LiveRun) -> None:
        if live.parent is not None:
            self._under_way.add(telling := asyncio.ensure_future(self.children.ended(live.id, live.parent)))
            telling.add_done_callback(self._under_way.discard)

    # Out

    async def shutdown(self, grace: float, hurry: asyncio.Event) -> None:
        """Hand every run back: after its step within the grace time, in the middle of it afterwards."""
        self.closing = True
        try:
            self._changes.stop()
            self.stop_all()
            await _settle(self._under_way, max(grace, 1.0), hurry)
            await _settle(self._driven, grace, hurry)
            self.stop_all(at_once=True)
            await _settle(self._driven, 1.0, asyncio.Event())
            for live in self.live.values():
                if live.task is not None:
                    goes_on(live.task, str(live.runner.cursor["next"]), live.id)
            if not await unless_hurried(self._let_go_of_all(), hurry):
                self._leave_all()
            await self._observers.settle(1.0)
        finally:
            self.postman.stop()
            self._lanes.close()
            await self.ending.over()
            await unless_hurried(self.ownership.end(), hurry)

    def stop_all(self, *, at_once: bool = False) -> None:
        """Want every live run handed back, at its next safe point or in the middle of its step."""
        for live in list(self.live.values()):
            live.runner.control.request_stop(at_once=at_once)

    @property
    def _driven(self) -> set[asyncio.Future[Any]]:
        return {live.task for live in self.live.values() if live.task is not None}

    def _leave_all(self) -> None:
        """There is no time to hand them back: whoever waits for one is told all the same, and the lease runs out."""
        self.ending.begin()
        for live in list(self.live.values()):
            live.done.set(Outcome(error=RunInterruptedError(live.id)))
            if live.task is not None:
                live.task.cancel()

    async def _let_go_of_all(self) -> None:
        for live in list(self.live.values()):
            # Its code neither returns nor lets itself be cancelled: take the run away from it.
            if live.id in self.live:
                await self._hand_back_anyway(live)
        await self.committer.drain()
        await self.custody.release()

    async def _hand_back_anyway(self, live: LiveRun) -> None:
        outcome = Outcome(error=RunInterruptedError(live.id))
        try:
            outcome = await leaving.stopped(live.runner)
        except HoldfastError:
            self.custody.add(live.runner.writer)
        live.done.set(outcome)


async def _settle(tasks: Collection[asyncio.Future[Any]], seconds: float, hurry: asyncio.Event) -> None:
    """Wait until these have ended, or there is no more time."""
    if not tasks or seconds <= 0:
        return
    done = asyncio.ensure_future(asyncio.wait(tasks))
    rushed = asyncio.ensure_future(hurry.wait())
    await asyncio.wait({done, rushed}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    done.cancel()
    rushed.cancel()
