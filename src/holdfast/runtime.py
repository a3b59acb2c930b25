"""Runtime: what a program holds in its hands."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar

from holdfast.clock import Clock, SystemClock
from holdfast.core.durations import is_duration
from holdfast.core.ids import check_id, parse_ref
from holdfast.core.policy import CheckpointPolicy, check_policy
from holdfast.core.retry import RetryPolicy
from holdfast.engine.doctor import examine
from holdfast.engine.listing import list_query, page_cursor, runs_of
from holdfast.engine.opened import Opened
from holdfast.engine.queueing import check_queues, check_worker_name, placing
from holdfast.engine.staff import workers
from holdfast.engine.verbs import MISSING
from holdfast.engine.views import run_view
from holdfast.errors import UsageError
from holdfast.flows.base import Flow
from holdfast.handles import RunHandle
from holdfast.model import Ask, Call, Checkpoint, Event, Health, Problem, Run, RunStatus, Worker
from holdfast.store.base import Store
from holdfast.store.locate import default_location, locate

R = TypeVar("R")


class Settings(TypedDict, total=False):
    """The keyword settings of a Runtime, for those who pass them on."""

    recover: bool
    queues: Iterable[str] | None
    name: str | None
    lease: float
    heartbeat: float
    grace: float
    concurrency: int
    policy: CheckpointPolicy | None
    retry: RetryPolicy | None
    crash_limit: int
    on_event: Callable[[Event], Any] | None
    durability: Literal["power", "process"]
    create: bool
    clock: Clock | None


class Runtime:
    """Runs flows on a store. Use it as `async with Runtime(...) as rt`.

    `store`: `sqlite:FILE`, `file:FOLDER`, `memory:`, a store object, or None to keep nothing; left out,
    $HOLDFAST_STORE, else `.holdfast/runs.db`. `recover=True` takes up what was interrupted and what waits in the
    `queues` (None: in all), and keeps looking; `name` is what `workers()` calls it. `lease`, `heartbeat` and `grace`
    are seconds: how long this process may be silent before others take over, how often it says that it lives, and
    how long a shutdown waits for steps under way.
    `crash_limit`: a run that crashed so often without finishing a step is ended as failed. `on_event` gets every
    event as it happens. `durability="process"` risks the last commits in a power cut, for speed.
    `create=False` takes a store as it is: one that is not there is refused, and opening removes nothing expired.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store | None = MISSING,
        *,
        recover: bool = False,
        queues: Iterable[str] | None = None,
        name: str | None = None,
        lease: float = 15.0,
        heartbeat: float = 5.0,
        grace: float = 10.0,
        concurrency: int = 1000,
        policy: CheckpointPolicy | None = None,
        retry: RetryPolicy | None = None,
        crash_limit: int = 10,
        on_event: Callable[[Event], Any] | None = None,
        durability: Literal["power", "process"] = "power",
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        if not (is_duration(lease) and 0 < heartbeat < lease):
            raise UsageError(f"heartbeat={heartbeat} must be more than 0 and less than lease={lease}, both in seconds")
        check_policy(policy)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise UsageError(f"retry={retry!r} must be a RetryPolicy, as RetryPolicy(attempts=3)")
        if on_event is not None and not callable(on_event):
            raise UsageError(f"on_event={on_event!r} must be a function that takes an Event")
        if concurrency < 1 or crash_limit < 1 or not is_duration(grace):
            raise UsageError("concurrency and crash_limit are at least 1, grace is in seconds, not negative")
        self._clock = clock or SystemClock()
        where = default_location(create=create) if store is MISSING else store
        self._store = locate(where, clock=self._clock, durability=durability, create=create)
        self._settings: dict[str, Any] = {
            "lease": lease,
            "heartbeat": heartbeat,
            "concurrency": concurrency,
            "policy": policy,
            "retry": retry,
            "crash_limit": crash_limit,
            "on_event": on_event,
            "name": None if name is None else check_worker_name(name),
        }
        self._queues = check_queues(queues)
        self._recover, self._grace, self._heartbeat, self._create = recover, grace, heartbeat, create
        self._to_register: list[Any] = []
        self._opened: Opened | None = None
        """Kept when it is over: how that was is still known."""

    # Opening and closing

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            if not self._opened.over:
                raise UsageError("this Runtime is open already")
            await self._opened.wait_closed()
        await self._store.open()
        self._opened = Opened(self._store, self._clock, **self._settings)
        self._opened.engine.registry.register(*self._to_register)
        if self._recover:
            self._opened.work(self._queues, poll=min(self._heartbeat, 1.0))
        elif self._create:
            self._opened.prune()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hand every live run back, resumable, and let go of the store.

        Steps under way may finish within the grace time; what still runs then is cut off. Calling it again
        while it waits makes it stop waiting; both return when it is closed.
        """
        if self._opened is not None:
            await self._opened.close(self._grace)

    def _stop_soon(self) -> None:
        """Begin no further step of any live run, from this very moment; `close` does the rest."""
        if self._opened is not None and not self._opened.over:
            self._opened.engine.stop_all()

    @property
    def _signed_off(self) -> bool:
        """Whether others can take at once what this process had, when it was last closed."""
        return self._opened is None or self._opened.signed_off

    @property
    def _time_left(self) -> float:
        """How long its loop may still wait for what was begun on it, once it is closed."""
        return self._grace if self._opened is None else self._opened.time_left

    def _now(self) -> Opened:
        """What it has now that it is open. Raises UsageError when it is not."""
        if self._opened is None or self._opened.over:
            raise UsageError("this Runtime is not open. Use it inside `async with Runtime(...) as rt:`")
        if self._opened.pid != os.getpid():
            raise UsageError("this Runtime was opened before a fork. Open a new one in the child process.")
        return self._opened

    def register(self, *items: Any) -> None:
        """Make flows known, so that their stored runs can go on here, and types that states may hold."""
        if self._opened is None or self._opened.over:
            self._to_register.extend(items)
        else:
            self._opened.engine.registry.register(*items)

    # Running

    async def run(
        self,
        flow: Flow[R],
        input: Any = MISSING,
        *,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
        until: Literal["ended", "settled"] = "ended",
    ) -> R:
        """The result of the run `id`: started, continued from its last checkpoint, joined, or read.

        With another input than the stored one it is an error and nothing runs. `until="settled"` raises
        RunWaitingError instead of waiting with a run that waits for something from outside.
        """
        result: R = await self._now().following.run(flow, input, id, metadata, parent, until)
        return result

    async def start(
        self,
        flow: Flow[R],
        input: Any = None,
        *,
        id: str | None = None,
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        key: str | None = None,
    ) -> RunHandle[R]:
        """A new run, durable before this returns and before any step runs.

        It is driven here, unless one of the last four is given: then it only goes into a queue ("default" if none
        is named), for a worker to take up. Of one queue the higher `priority` (0 if not given) goes first, then
        the older run; `delay` puts its start off; the runs of one `key` are counted for the flow's limit per key.

        Raises RunExistsError when the id is taken.
        """
        verbs, place = self._now().verbs, placing(queue, priority, delay, key)
        if place.delay is not None:
            return RunHandle(self, await verbs.enqueue(flow, input, id, metadata, parent, place), queued=True)
        live = await verbs.start(flow, input, id, metadata, parent)
        return RunHandle(self, live.id, live)

    async def resume(self, ref: str) -> RunHandle[Any]:
        """Go on with a run from its latest checkpoint: interrupted, paused or failed ones."""
        live = await self._now().verbs.resume(ref)
        return RunHandle(self, live.id, live)

    async def rewind(self, ref: str) -> RunHandle[Any]:
        """Go on from an older checkpoint, RUN@SEQ, in place. Nothing of the history is deleted."""
        live = await self._now().verbs.rewind(ref)
        return RunHandle(self, live.id, live)

    async def fork(
        self,
        ref: str,
        *,
        id: str | None = None,
        state: Any = MISSING,
        metadata: dict[str, Any] | None = None,
        raw: bool = False,
    ) -> RunHandle[Any]:
        """A new run from a checkpoint, with another state if one is given. The source is untouched.

        It runs here if this program has the flow; otherwise it stays pending until one that has it recovers.
        `raw=True` takes the state as the JSON that `load(ref, raw=True)` gives.
        """
        head, live = await self._now().verbs.fork(ref, id, state, metadata, raw=raw)
        return RunHandle(self, head.id, live)

    async def pause(self, id: str) -> None:
        """Pause a run: at its next safe point where it is live, at once where it is not."""
        await self._now().verbs.stop("pause", id)

    async def cancel(self, id: str, reason: str | None = None) -> None:
        """Cancel a run for good: at its next safe point where it is live, at once where it is not."""
        await self._now().verbs.stop("cancel", id, reason)

    async def recover(self) -> list[RunHandle[Any]]:
        """Take up every interrupted run of a registered flow that nobody drives; their handles."""
        return [RunHandle(self, live.id, live) for live in await self._now().recovery.recover()]

    async def interrupted(self) -> list[Run]:
        """What `recover` would take up, only listed."""
        return [run_view(head) for head in await self._now().recovery.interrupted()]

    # Looking

    def health(self) -> Health:
        """How this runtime, opened with recover=True, is; safe to ask from any thread, whatever the event loop does."""
        if self._opened is None or self._opened.worker is None:
            raise UsageError("health() is that of a worker: open the Runtime with recover=True")
        return self._opened.worker.health(self._settings["concurrency"])

    async def workers(self) -> builtins.list[Worker]:
        """Everybody who drives runs of this store, or would take them from its queues, the living first."""
        return await workers(self._now().store)

    async def get(self, id: str) -> Run | None:
        """What is known of a run; None when there is none."""
        head = await self._now().reader.head(check_id(id))
        return None if head is None else run_view(head)

    async def list(
        self,
        *,
        status: RunStatus | str | Iterable[RunStatus | str] | None = None,
        flow: str | Iterable[str] | None = None,
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> AsyncIterator[Run]:
        """The runs that match all filters, newest first.

        `limit` runs at most; `after` goes on behind the run of that page cursor (see `page`).
        Raises StoreDamagedError behind all others when one of them cannot be read.
        """
        store = self._now().store
        query = list_query(status, flow, metadata, parent, created_after, created_before, limit, after)
        async for run in runs_of(store, query, limit):
            yield run

    @staticmethod
    def page(run: Run) -> str:
        """The cursor that `list(after=...)` takes to go on behind this run."""
        return page_cursor(run)

    async def checkpoints(self, id: str, *, raw: bool = False) -> AsyncIterator[Checkpoint]:
        """The checkpoints of a run that are kept, oldest first; `raw` as in `load`."""
        async for checkpoint in self._now().reader.checkpoints(check_id(id), raw=raw):
            yield checkpoint

    async def load(self, ref: str, *, raw: bool = False) -> Checkpoint | None:
        """One checkpoint by RUN@SEQ, or the latest by RUN; None when it is not there.

        `raw=True` gives the state as the JSON that is stored, for which no type of the program is needed.
        """
        return await self._now().reader.load(*parse_ref(ref), raw=raw)

    async def result(self, id: str, *, raw: bool = False) -> Any:
        """The result of a run that has completed; `raw` as in `load`.

        Raises what the run has come to when that is something else, and RunOwnedError while it is live.
        """
        return await self._now().following.result(id, raw=raw)

    async def doctor(self) -> AsyncIterator[Problem]:
        """Everything that is wrong with the store, by run and seq; nothing when it is sound.

        Checks the store's own structure, every checksum and every chain, and rebuilds every checkpoint. A
        damaged run does not keep the others from being checked, and nothing is changed.
        """
        async for problem in examine(self._now().store):
            yield problem

    async def events(self, id: str, *, after: int | Event = 0, follow: bool = False) -> AsyncIterator[Event]:
        """What happened in a run behind the place `after`, in order; with `follow`, as it goes on.

        `after` is a seq, or the last event seen, so that a reader who comes back misses nothing and sees
        nothing twice. Following ends when the run has ended; a restart of its process does not end it, and
        closing this runtime raises RunInterruptedError, deleting the run RunNotFoundError.
        """
        async for event in self._now().reader.events(check_id(id), after, follow):
            yield event

    async def ledger(self, id: str) -> AsyncIterator[Call]:
        """The journaled calls of a run that its history still holds: name, key, and what became of each."""
        async for line in self._now().reader.ledger(check_id(id)):
            yield line

    # Talking to runs

    async def send(self, id: str, topic: str, data: Any = None) -> None:
        """Send a message to a run, for its `receive(topic)`; durable when this returns.

        Messages are received in the order in which they were sent, each once, also when the run has not come to its
        `receive` yet. A run that has ended refuses them.
        """
        await self._now().mailing.send(id, topic, data)

    async def answer(self, id: str, value: Any, *, ask: str | None = None) -> str:
        """Answer the question that a run waits with; the id of the question. Durable when this returns.

        `ask` says which question when several are open. Of two answers the first counts: the other raises
        AnsweredError. One that does not fit the question's schema raises AnswerError and changes nothing.
        """
        return await self._now().mailing.answer(id, value, ask)

    async def asks(self, id: str | None = None, *, raw: bool = False) -> AsyncIterator[Ask]:
        """The questions that are open, of one run or of all; `raw` as in `load`, for their data."""
        async for question in self._now().mailing.asks(id, raw=raw):
            yield question

    # Removing

    async def delete(self, id: str) -> None:
        """Remove a run with all its history. Nothing happens when there is none; a live one is refused."""
        await self._now().verbs.delete(id)

    async def prune(self) -> int:
        """Remove the history that has expired by the policies' `ttl`; how many runs lost some."""
        return await self._now().pruning.prune()
