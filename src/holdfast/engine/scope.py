"""The scope of one attempt of a step: what its code may ask of the engine, until it is closed.

A scope is closed when its attempt has ended, timed out, failed to be written, or was let go. From then on
every verb raises again, whatever the code swallows, and what it returns is discarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from holdfast.context import RunContext
from holdfast.core.codec import Tree, dumps
from holdfast.core.journal import Record
from holdfast.core.keys import digest, step_key
from holdfast.core.retry import RetryPolicy
from holdfast.engine.calls import Calling
from holdfast.engine.chunks import add_chunk
from holdfast.engine.surroundings import Host
from holdfast.engine.threads import Lane
from holdfast.engine.uncut import uncut
from holdfast.engine.waits import Waits
from holdfast.errors import RunInterruptedError, StateError, StoreUnavailableError
from holdfast.flows.moves import MOVES, Keeping
from holdfast.frames import Frame, Place
from holdfast.inside import in_thread
from holdfast.work import Work

_HANDED_OVER = 256
_MUCH = 4096
"""After so many chunks, counted once more for each so many bytes, a thread waits for the loop to catch up."""


class StepScope(msgspec.Struct, eq=False):
    """The Scope of one attempt."""

    host: Host
    number: int
    loop: asyncio.AbstractEventLoop
    closed: bool = False
    busy: int = 0
    """How many calls are under way that do not themselves wait for something from outside."""
    from_threads: int = 0
    """How much threads have handed over since they last waited for the loop."""
    tasks: set[asyncio.Task[Any]] | None = None
    starting: set[asyncio.Future[None]] | None = None
    """The children on their way that the code has not awaited yet."""
    unspawned: bool = False
    """Whether a child could not be started because this process begins nothing any more: the run has to leave."""
    waits: Waits | None = None
    here: list[Frame] = []
    """The calls that threads of the body make themselves and that the loop does not count yet."""
    root: Any = None
    """The frame of the step itself, for as long as the attempt is under way."""

    # What flows ask for

    def perform(self, step: Work, *args: Any, keeping: Keeping = MOVES) -> Awaitable[Any]:
        """What to await for the result of the step's function."""
        if self.closed:
            self.check_open()
        host = self.host
        if step.on_doubt == "retry" and (host.begun_journal is None or step.wraps_step or not self._known(step)):
            return host.hands.do_step(step, args, self.root)
        return self.as_a_call(step, args, keeping, args[-1] if args else None, retries=False)

    def _known(self, step: Work) -> bool:
        """Whether something is known of the step, though it is of those now that may be repeated unasked."""
        return self.host.journal.knows_step(step_key(self.number, step.called))

    async def children_started(self) -> None:
        """Return when all children exist that were spawned and that nobody waits for; raises what kept one from it."""
        await self.started(self.root)
        for starting in self.starting or ():
            starting.result()

    async def as_a_call(
        self, step: Work, args: tuple[Any, ...], keeping: Keeping, state: Any, *, retries: bool = True
    ) -> Any:
        """The result of a step that is journaled as a call is: its effect must not be repeated unasked, or is undone.

        With `retries` it is tried again here, else by whoever performs the step.
        """
        place = Place(self.root, step_key(self.number, step.called), step.called, self.digest(args))
        making = Calling(self, place, step, args, {}, whole_step=True, retries=retries)
        making.keep(keeping, state)
        return await making.result()

    @property
    def pid(self) -> int:
        """The process in which the run is driven."""
        return self.host.pid

    @property
    def retry(self) -> RetryPolicy:
        """What counts for steps that say nothing of being tried again."""
        return self.host.retry

    @property
    def memo(self) -> dict[str, Any]:
        """What the flow keeps in memory for as long as the run is live here."""
        return self.host.memo

    @property
    def skips_saves(self) -> bool:
        """Whether the policy may leave the step unsaved."""
        return self.host.skips_saves

    def encode(self, value: Any, path: str) -> Tree:
        """The value as it is stored."""
        return self.host.codec.encode(value, path=path)

    def decode(self, tree: Tree, path: str) -> Any:
        """The value of what was stored."""
        return self.host.codec.decode(tree, path=path)

    def entry_of(self, place: Place) -> int | None:
        """The entry that holds the result of a call made since the last checkpoint."""
        seq = self.host.journal.seq_of(place.key)
        return seq if seq > self.host.writer.checkpoint_seq else None

    def record(self, place: Place) -> Record | None:
        """What the log says of the call at that place, which is asked for by this."""
        journal = self.host.begun_journal
        return journal.find(place.key) if journal is not None else None

    def found(self, place: Place) -> int:
        """The entry that holds the result of the call or child at that place, which is asked for by this; 0 without."""
        self.host.journal.find(place.key)
        return self.host.journal.seq_of(place.key)

    def has_message(self, frame: Frame, topic: str, *, new: bool = True) -> bool:
        """Whether `receive(topic)` gives something in a moment there, now or when the body ran before."""
        journal = self.host.begun_journal
        if journal is not None and journal.has_ended(frame.next_key("receive")):
            return True
        if not new or not self.host.has_inbox or (journal is not None and journal.goes_beyond(self.number)):
            return False
        return topic in self.host.inbox.coming or any(signal.topic == topic for signal in self.host.inbox.signals)

    # What verbs ask for

    def context(self, frame: Frame) -> RunContext:
        """What `current_run()` gives in that frame."""
        return self.host.context(frame)

    def digest(self, arguments: Any) -> str | None:
        """What tells these arguments from others; None when they cannot be encoded."""
        try:
            return digest(self.host.codec.encode(arguments, path="arguments"))
        except StateError:
            return None

    async def call(
        self,
        place: Place,
        work: Work,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lane: Any = None,
        keeping: Keeping | None = None,
    ) -> Any:
        """The result of the function: found in the journal, or made and journaled."""
        await self.joined(place.frame)
        making = Calling(self, place, work, args, kwargs, lane=lane)
        if keeping is not None:
            making.keep(keeping, args[0])
        return await making.result()

    def begin_here(self, place: Place) -> Frame | None:
        """The frame for a call that the calling thread makes at once; None when the loop has to look it up first.

        Called by threads: what it does to the scope is one operation that no other thread can come between.
        """
        journal, above = self.host.begun_journal, place.frame
        if self.closed or above.over or self.host.holds_calls or (journal is not None and journal.replays):
            return None
        frame = above.inside(f"{place.key}/", place.key)
        frame.threaded, frame.executor = True, above.executor
        self.here.append(frame)
        return frame

    def given_up_here(self, frame: Frame) -> None:
        """Such a call has no outcome: the run was let go in it."""
        self.here.remove(frame)

    async def conclude(self, place: Place, work: Work, frame: Frame, outcome: tuple[bool, Any]) -> Any:
        """Journal what came of it, and give or raise that."""
        await self.joined(place.frame)
        making = Calling(self, place, work, (), {})
        making.made = frame, *outcome
        return await making.result()

    def lane(self) -> Lane:
        """What the calling thread serves to do the work of a call itself."""
        return Lane(own_thread=False)

    async def wait(self, place: Place, body: dict[str, Any], declared: Any, default: Any) -> Any:
        """What the run waits for: an answer, a message, a moment, a child's result."""
        await self.joined(place.frame)
        return await self.waiting().wait(place, body, declared, default)

    def waiting(self) -> Waits:
        """The waits of this attempt."""
        if self.waits is None:
            self.check_open()  # what the inbox tells belongs to the attempt under way, not to what is left of one
            self.waits = Waits(self)
        return self.waits

    async def hold(self, place: Place) -> None:
        """Begin nothing more when the run is to leave and its whole body is journaled, or has no other way."""
        if self.unspawned or self.host.holds_calls:
            await self.waiting().hold(place)

    def emit(self, frame: Frame, name: str, data: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        """Add a chunk to the stream; what it gives waits while too many are unwritten."""
        tree = self.host.codec.encode(data, path=f"chunk {name!r}")
        at, size = frame.stream, len(dumps(tree))
        try:
            on_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            on_loop = False
        if on_loop:
            add_chunk(self, at, name, tree, size)
        else:
            self.loop.call_soon_threadsafe(add_chunk, self, at, name, tree, size)
            self.from_threads += 1 + size // _MUCH
            if self.from_threads >= _HANDED_OVER:
                # A thread can wait, so it does: the loop must not be buried under what it hands over.
                self.from_threads = 0
                in_thread(frame, self._breathe())
        return self._breathe

    async def _breathe(self) -> None:
        self.check_open()
        await (self.host.notes.settle() if self.host.notes.crowded else asyncio.sleep(0))

    def child_id(self, place: Place) -> str:
        """The id that a child spawned at that place has by default."""
        run = self.host.writer.run
        return f"{run[:100]}.{self.host.context(place.frame.inside(None, place.key)).idempotency_key[:12]}"

    async def spawn(self, place: Place, flow: Any, input: Any, id: str) -> None:
        """Return when the child run exists."""
        await self.joined(place.frame)
        self.host.children.know(flow)
        if self.host.journal.find(place.key) is not None:
            return  # it was waited for before, so it exists
        self.busy += 1
        try:
            again = self.host.journal.failed_before(place.key)
            chosen = id != self.child_id(place)
            run = self.host.writer.run
            before = await uncut(self.host.children.ensure(flow, input, id, run, again=again, chosen=chosen))
            if before is not None:
                self.host.tell_changed(place.key, place.name, before, place.args or "")
        except RunInterruptedError:
            self.unspawned = True
        except StoreUnavailableError as error:
            self._unreachable(error)
            raise
        finally:
            self.busy -= 1
            self.look_around()

    async def cancel_child(self, id: str, reason: str | None) -> None:
        """Cancel a child run, unless it has ended."""
        self.check_open()
        try:
            await uncut(self.host.children.stop(id, reason))
        except StoreUnavailableError as error:
            self._unreachable(error)
            raise

    def _unreachable(self, error: StoreUnavailableError) -> None:
        """Stop the run where it stands: the store is away, which is no failure of the step."""
        if not self.closed:
            self.host.failed(error)

    async def started(self, frame: Frame) -> None:
        """Return when the children exist that are on their way: what is committed next may rely on them."""
        if self.starting:
            await asyncio.wait(self.starting)
        if self.unspawned:
            await self.waiting().hold(Place(frame, "", "spawn", None))

    # What is under way

    async def joined(self, frame: Frame) -> None:
        """The calling task takes part in the attempt: it is cancelled when the attempt is let go."""
        if self.closed or frame.over:
            await asyncio.sleep(0)  # code that swallows this and tries again must leave the others their turn
        self.check_open()
        if frame.over:
            raise asyncio.CancelledError("the call that this is part of is over: it failed, timed out, or was given up")
        task = asyncio.current_task()
        if self.tasks is None:
            self.tasks = set()
        if task is not None and task not in self.tasks:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def check_open(self) -> None:
        """Raises when the attempt is over: what is left of its code is to unwind."""
        if self.closed:
            raise asyncio.CancelledError("this attempt is over: the run was let go, timed out, or was taken over")

    def began(self, frame: Frame) -> None:
        """A call whose function has this frame is under way."""
        frame.running = True
        self.busy += 1

    def ended(self, frame: Frame) -> None:
        """It is not any more."""
        frame.running = False
        if not frame.parked:
            self.busy -= 1
        self.look_around()

    def parked(self, frame: Frame, by: int) -> None:
        """A wait was parked in this frame, or taken out of it: the calls around it wait with it."""
        above: Frame | None = frame
        while above is not None:
            before, above.parked = above.parked, above.parked + by
            if above.running and not (before and above.parked):
                self.busy += 1 if before else -1
            above = above.parent
        self.look_around()

    def look_around(self) -> None:
        """Something has changed that may leave the run with nothing to do but wait."""
        if self.waits is not None and not self.closed:
            self.waits.look_around()

    def close(self) -> None:
        """The attempt is over."""
        self.closed = True
        if self.waits is not None:
            self.waits.close()

    def cancel_tasks(self, but: asyncio.Task[Any] | None) -> None:
        """Cancel what is still under way of a closed attempt."""
        for task in list(self.tasks or ()):
            if task is not but and not task.done():
                task.cancel()

    def end(self, task: asyncio.Task[Any] | None) -> None:
        """The attempt has ended in that task: what it still has under way is cancelled."""
        self.closed = True
        if self.waits is not None:
            self.waits.close()
            self.waits = None
        if self.tasks:
            self.cancel_tasks(but=task)
        self.root = None  # otherwise they keep each other until a collection finds them
