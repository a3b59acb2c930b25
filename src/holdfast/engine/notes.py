"""Entries that are written while a step is under way: all that are ready share a commit.

Whoever writes one goes on when it is durable. A commit is never cut off half-way: it belongs to a task of
its own, and giving up the wait for it does not take it back. Chunks of a stream wait a moment for more of
them, or go with whatever is written next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.engine.progress import Mark
from holdfast.engine.writer import RunWriter
from holdfast.errors import HoldfastError, RunInterruptedError
from holdfast.frames import Place
from holdfast.model import Entry, Kind, Mail

CHUNKS_WAIT = 0.05
CHUNKS_ENOUGH = 1000
BYTES_ENOUGH = 1 << 20


class _Note:
    __slots__ = ("body", "fields", "kind", "soon", "take", "written")

    def __init__(self, kind: Kind | None, body: Any, take: tuple[int, ...], fields: dict[str, Any]) -> None:
        self.kind, self.body, self.take, self.fields = kind, body, take, fields
        self.written: Callable[[int | HoldfastError], None] | None = None
        self.soon = True


class Notes:
    """Belongs to one live run.

    Nothing else writes for the run while a step is under way, and this writes only then: two commits that
    are made at the same time would both be for the next place in the log.
    """

    def __init__(
        self,
        writer: RunWriter,
        wrote: Callable[[Sequence[Entry], tuple[Mail, ...]], None],
        failed: Callable[[HoldfastError], None],
    ) -> None:
        self._writer, self._wrote, self._failed = writer, wrote, failed
        self._loop = asyncio.get_running_loop()
        self._due: list[_Note] = []
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: HoldfastError | None = None
        self._open = False
        self._size = 0
        """Bytes of the chunks that wait to be written."""

    def step_begins(self) -> None:
        """A step is under way from now on: what came in since the last one is written."""
        self._open = True
        if self._due:
            self._begin()

    def step_ended(self) -> None:
        """What comes in from now on waits for the next step, or for `settle`."""
        self._open = False

    def end(self, error: HoldfastError) -> None:
        """The run has left: nothing more is written, and whoever waits for it is told."""
        self._error = self._error or error
        self._open = True
        if self._due:
            self._begin()

    @property
    def idle(self) -> bool:
        """Whether nothing is being written or about to be."""
        return self._task is None and not self._due

    @property
    def crowded(self) -> bool:
        """Whether more is waiting to be written than should be."""
        return len(self._due) > CHUNKS_ENOUGH or self._size > BYTES_ENOUGH

    async def write(
        self,
        kind: Kind,
        body: dict[str, Any],
        *,
        then: Callable[[int], object] | None = None,
        take: tuple[int, ...] = (),
        **fields: Any,
    ) -> int:
        """The seq of the entry, durable when this returns. `then` is told of it also when nobody waits any more."""
        future: asyncio.Future[int] = self._loop.create_future()

        def settle(result: int | HoldfastError) -> None:
            if then is not None and isinstance(result, int):
                then(result)
            if future.done():
                return
            if isinstance(result, HoldfastError):
                future.set_exception(result)
                future.exception()  # when nobody waits any more, it must not be reported as forgotten
            else:
                future.set_result(result)

        self._put(kind, body, take, fields, settle)
        self._begin()
        return await future

    def put(
        self,
        kind: Kind | None,
        body: dict[str, Any] | None = None,
        *,
        take: tuple[int, ...] = (),
        written: Callable[[int | HoldfastError], None] | None = None,
        soon: bool = True,
        size: int = 0,
    ) -> None:
        """Have it written soon, or with what comes next; without a kind only the mail is taken."""
        self._put(kind, body, take, {}, written).soon = soon
        self._size += size
        if soon or self._enough:
            self._begin()
        else:
            self._wait_for_more()

    @property
    def _enough(self) -> bool:
        return len(self._due) >= CHUNKS_ENOUGH or self._size >= BYTES_ENOUGH

    def _wait_for_more(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(CHUNKS_WAIT, self._waited_enough)

    def _put(
        self,
        kind: Kind | None,
        body: Any,
        take: tuple[int, ...],
        fields: dict[str, Any],
        written: Callable[[int | HoldfastError], None] | None,
    ) -> _Note:
        note = _Note(kind, body, take, fields)
        note.written = written
        self._due.append(note)
        return note

    def _waited_enough(self) -> None:
        self._timer = None
        self._begin()

    def _begin(self, *, anyway: bool = False) -> None:
        if self._task is None and (self._open or anyway):
            self._task = self._loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._due:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                batch, self._due, self._size = self._due, [], 0
                await self._write_batch(batch)
                if self._due and not self._enough and not any(note.soon for note in self._due):
                    self._wait_for_more()  # only chunks have come meanwhile, and not many
                    return
        finally:
            self._task = None

    async def _write_batch(self, batch: list[_Note]) -> None:
        marks: list[Mark] = [(note.kind, note.body) for note in batch if note.kind is not None]
        take = tuple(mail for note in batch for mail in note.take)
        fields = {name: value for note in batch for name, value in note.fields.items()}
        try:
            if self._error is not None:
                raise self._error
            mail = await self._writer.write(marks, take=take, under_way=True, **fields)
        except Exception as error:
            # Whoever waits for the entry must be told, whatever it was: a store of the user's may raise anything.
            self._error = _told(error, self._writer.run)
            for note in batch:
                if note.written is not None:
                    note.written(self._error)
            self._failed(self._error)
            return
        entries = self._writer.written
        place = len(entries) - len(marks)
        for note in batch:
            if note.kind is not None:
                if note.written is not None:
                    note.written(entries[place].seq)
                place += 1
        self._wrote(entries, mail)

    async def settle(self) -> None:
        """Return when all of it is written. Raises StoreError or OwnershipLostError when it could not be."""
        while self._due or self._task is not None:
            self._begin(anyway=True)
            assert self._task is not None
            await asyncio.wait({self._task})
        if self._error is not None:
            raise self._error

    async def hand_over(self) -> list[Mark]:
        """What is left to be written, for the commit that ends the step; nothing is under way after this."""
        while self._task is not None:
            await asyncio.wait({self._task})
        if self._error is not None:
            raise self._error
        if any(note.soon for note in self._due):
            await self.settle()
        left, self._due, self._size = self._due, [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return [(note.kind, note.body) for note in left if note.kind is not None]


def told_of(place: Place, writer: RunWriter) -> dict[str, Any]:
    """What an entry says of where a verb was used."""
    told: dict[str, Any] = {"key": place.key, "name": place.name, "of": writer.checkpoint_seq}
    if place.args is not None:
        told["args"] = place.args
    if place.frame.tried:
        told["tried"] = place.frame.tried
    return told


def _told(error: Exception, run: str) -> HoldfastError:
    """The error itself, or one of ours that says what it was."""
    if isinstance(error, HoldfastError):
        return error
    told = RunInterruptedError(run, f"writing met an unexpected {type(error).__name__}: {error}")
    told.__cause__ = error
    return told
