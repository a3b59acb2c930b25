"""What can be known of a run from its log and head. Nothing here writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.core.checksum import verify
from holdfast.core.codec import Tree
from holdfast.core.events import events_of, last_step, when
from holdfast.core.history import Fold, Point, Signal, last_kept, last_point, newest, read_body, with_signal
from holdfast.core.journal import Journal
from holdfast.core.transitions import ENDED
from holdfast.engine.heads import Found, read_apart
from holdfast.engine.info import Info
from holdfast.engine.registry import Registry
from holdfast.engine.views import ledger_line
from holdfast.errors import (
    NotACheckpointError,
    ResultExpiredError,
    RunInterruptedError,
    RunNotFoundError,
    StoreDamagedError,
    UsageError,
)
from holdfast.model import CHECKPOINT_KINDS, RESULT_KINDS, Call, Checkpoint, Entry, Event, Head, Kind, RunStatus
from holdfast.store.base import Store

_PAGE = 500
_LOOK_AGAIN = 1.0
_TRIES = 5

T = TypeVar("T")


def _life(head: Head) -> str:
    """What tells a run from another one that had its id before or has it after."""
    try:
        return msgspec.json.decode(head.info, type=Info).nonce
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""  # damaged, which is told elsewhere


def _can_go_on_from(entry: Entry) -> bool:
    """Whether it is a checkpoint or, in a flow that is one body of journaled calls, the end of a call."""
    if entry.kind in CHECKPOINT_KINDS:
        return True
    return entry.kind in RESULT_KINDS and bool(msgspec.json.decode(entry.cursor).get("body"))


def _place_of(after: int | Event) -> tuple[int, int]:
    """The place in the log behind which a reader goes on: seq, and which of the events of that entry."""
    if type(after) is int:
        return after, 1 << 30
    if not isinstance(after, Event) or after.seq is None:
        raise UsageError(
            f"events(after={after!r:.200}): it is the seq or the event that was seen last. An event that came live to "
            f"on_event, before it was written, has no seq and so no place in the log."
        )
    return after.seq, after.index


class Reader:
    """Reads runs of one store with the types of one program."""

    def __init__(self, store: Store, registry: Registry, wait: Callable[[str, int, float], Awaitable[int]]) -> None:
        """`wait` is the store's `wait_change` for whoever follows a run; it raises when the runtime shuts down."""
        self._store, self._registry, self._wait = store, registry, wait
        self._asked: list[tuple[str, asyncio.Future[Head | None]]] = []
        self._reading: set[asyncio.Task[None]] = set()

    def head(self, run: str) -> asyncio.Future[Head | None]:
        """The head of a run; None when there is no such run. Those asked for at once are read at once."""
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._begin_reading)
        waiting: asyncio.Future[Head | None] = loop.create_future()
        self._asked.append((run, waiting))
        return waiting

    def _begin_reading(self) -> None:
        asked, self._asked = self._asked, []
        task = asyncio.ensure_future(self._read_asked(asked))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read_asked(self, asked: list[tuple[str, asyncio.Future[Head | None]]]) -> None:
        found: Sequence[Found | Exception]
        try:
            found = await read_apart(self._store, [run for run, _ in asked])
        except Exception as error:
            found = [error] * len(asked)
        for (_, waiting), head in zip(asked, found, strict=True):
            if waiting.done():
                continue
            if isinstance(head, Exception):
                waiting.set_exception(head)
            else:
                waiting.set_result(head)

    async def drain(self) -> None:
        """Return when everything that was asked for has been answered."""
        while self._asked or self._reading:
            if self._reading:
                await asyncio.wait(self._reading)
            else:
                await asyncio.sleep(0)

    async def log(self, run: str, after: int = 0, upto: int | None = None) -> AsyncIterator[Entry]:
        """The entries of a run in order, read page by page."""
        while True:
            page = await self._store.read_entries(run, after=after, upto=upto, limit=_PAGE)
            for entry in page:
                yield entry
            if len(page) < _PAGE:
                return
            after = page[-1].seq

    async def _newest(self, head: Head) -> list[Entry]:
        """The newest segment of a run as it was when its head was read, whatever was written since."""
        return await self._store.read_entries(head.id, after=head.base - 1, upto=head.seq)

    async def _looked_at_again(self, head: Head, read: Callable[[Head], Awaitable[T]]) -> T:
        """What `read` gives of the run.

        Head and log are read one after the other. What does not fit together because the run was deleted in between
        (its id may have been used again), or some of its history was dropped, is no damage: RunNotFoundError, or it is
        read again.
        """
        for _ in range(_TRIES):
            try:
                return await read(head)
            except (StoreDamagedError, ResultExpiredError):
                (now,) = await self._store.read_heads([head.id])
                if now is None or _life(now) != _life(head):
                    raise RunNotFoundError(head.id) from None
                if now == head:
                    raise
                head = now
        return await read(head)

    async def segment(self, head: Head) -> list[Entry]:
        """The newest segment of a run, whole and sound; nothing when that has expired. Raises RunNotFoundError."""
        try:
            return await self._looked_at_again(head, self._segment)
        except ResultExpiredError:
            return []

    async def _segment(self, head: Head) -> list[Entry]:
        entries = await self._store.read_entries(head.id, after=head.base - 1)
        newest(head, entries)  # damage is found before anything is believed
        return entries

    async def point(self, head: Head, seq: int | None) -> Point | None:
        """The checkpoint of that seq, or the last one; None when the log has no such entry.

        Raises NotACheckpointError when the entry is something else, RunNotFoundError when the run is gone.
        """
        return await self._looked_at_again(head, lambda head: self._point(head, seq))

    async def _point(self, head: Head, seq: int | None) -> Point | None:
        if seq is None:
            return last_kept(head, await self._newest(head))
        found = await self._store.read_entries(head.id, after=seq - 1, upto=seq)
        if not found or seq < head.floor:
            return None
        if found[0].kind not in CHECKPOINT_KINDS:
            raise NotACheckpointError(head.id, seq, await self.nearest(head, seq))
        base = read_body(head.id, found[0]).get("base", seq)
        if type(base) is not int or not 0 < base <= seq:
            raise StoreDamagedError(head.id, seq, "it names a segment that cannot be")
        entries = await self._store.read_entries(head.id, after=base - 1, upto=seq)
        if not entries or entries[-1].seq != seq:
            return None  # retention dropped it since it was looked at
        return last_point(head.id, entries)

    async def place(self, head: Head, seq: int | None) -> tuple[Point, int]:
        """The checkpoint to go on from, with the journal of what to keep behind it, and the seq it was named by.

        In a flow that is one body of journaled calls, the entry of a call is a place to go on from as well.
        Raises NotACheckpointError.
        """
        try:
            point = await self.point(head, seq)
        except NotACheckpointError:
            found = await self._at_call(head, seq or 0)
            if found is None:
                raise
            return found, seq or 0
        if point is None:
            raise NotACheckpointError(head.id, seq or 0, await self.nearest(head, seq or 0))
        if point.cursor["next"] is None and "result" not in point.extra:
            point.extra.update(await self._result_behind(head, point.seq))
        return point, point.seq

    async def _result_behind(self, head: Head, seq: int) -> dict[str, Tree]:
        """What the run came to at its last checkpoint, where that is not its state: it stands where the run ended."""
        async for entry in self.log(head.id, seq):
            if entry.kind in (Kind.COMPLETED, Kind.CANCELLED):
                verify(head.id, entry)
                body = read_body(head.id, entry)
                return {"result": body["result"]} if "result" in body else {}
        return {}

    async def _at_call(self, head: Head, seq: int) -> Point | None:
        found = await self._store.read_entries(head.id, after=seq - 1, upto=seq)
        if not found:
            return None  # retention dropped it since it was looked at
        entry = found[0]
        verify(head.id, entry)
        if not _can_go_on_from(entry):
            return None
        of = read_body(head.id, entry)["of"]
        point = await self.point(head, of)
        if point is None:
            return None
        entries = await self._store.read_entries(head.id, after=of - 1, upto=seq)
        for one in entries:
            verify(head.id, one)
        journal = Journal.of(head.id, entries)
        point.extra["journal"] = [] if journal is None else journal.results()
        return point

    async def signals(self, run: str, after: int) -> list[Signal]:
        """The messages that came in behind that place."""
        found: tuple[Signal, ...] = ()
        async for entry in self.log(run, after):
            if entry.kind == Kind.SIGNAL:
                verify(run, entry)
                found = with_signal(found, entry.seq, read_body(run, entry))
        return list(found)

    async def ledger(self, run: str) -> AsyncIterator[Call]:
        """The journaled calls of a run that its log still holds, in the order in which they ended."""
        if await self.head(run) is None:
            raise RunNotFoundError(run)
        begun: dict[str, Entry] = {}
        waits: set[str] = set()
        async for entry in self.log(run):
            if entry.kind in (Kind.INTENT, Kind.CALL, Kind.WAIT):
                verify(run, entry)
                key = read_body(run, entry)["key"]
                if entry.kind == Kind.INTENT:
                    begun[key] = entry
                elif entry.kind == Kind.WAIT:
                    waits.add(key)
                elif key not in waits:  # a sleep or a child that ended stands in the log as a call does
                    yield ledger_line(run, entry, begun.pop(key, None))
            elif entry.kind == Kind.REWOUND:
                for cut_off in begun.values():  # the new branch may make the call too: the old one stays in doubt
                    yield ledger_line(run, cut_off, None)
                begun.clear()
                waits.clear()
        for entry in begun.values():
            yield ledger_line(run, entry, None)

    async def nearest(self, head: Head, seq: int) -> int | None:
        """The seq nearest to `seq` that a run can go on from; the older one of two."""
        best: int | None = None
        async for entry in self.log(head.id, head.floor - 1):
            if (best is None or abs(entry.seq - seq) < abs(best - seq)) and _can_go_on_from(entry):
                best = entry.seq
        return best

    def checkpoint(self, head: Head, point: Point, before: int | None, *, raw: bool) -> Checkpoint:
        """A point as users see it, with the state built anew, or as a copy of its tree."""
        origin = point.extra.get("from") or (f"{head.id}@{point.extra['to']}" if "to" in point.extra else None)
        state = msgspec.to_builtins(point.tree) if raw else self._registry.codec(head.flow).decode(point.tree)
        return Checkpoint(
            id=f"{head.id}@{point.seq}",
            run=head.id,
            seq=point.seq,
            step=point.cursor["step"],
            next=point.cursor["next"],
            state=state,
            metadata=msgspec.json.decode(head.metadata),
            created_at=when(point.entry.at),
            parent=origin or (f"{head.id}@{before}" if before is not None else None),
            after=last_step(point.extra),
        )

    async def checkpoints(self, run: str, *, raw: bool = False) -> AsyncIterator[Checkpoint]:
        """Every checkpoint that is kept, oldest first."""
        seen, told = 0, ""
        while True:
            head = await self.head(run)
            if head is None:
                raise RunNotFoundError(run)
            fold, before = Fold(run), None
            try:
                async for entry in self.log(run):
                    point = fold.add(entry)
                    if point is not None:
                        if point.seq >= max(head.floor, seen + 1):
                            seen = point.seq
                            yield self.checkpoint(head, point, before, raw=raw)
                        before = point.seq
                return
            except StoreDamagedError as error:
                # Where history was dropped between two pages, it is not damaged, and is not so when it is read again.
                if str(error) == told:
                    raise
                told = str(error)

    async def load(self, run: str, seq: int | None, *, raw: bool = False) -> Checkpoint | None:
        """One checkpoint, or the latest; None when it is not there."""
        head = await self.head(run)
        if head is None:
            return None
        try:
            point = await self.point(head, seq)
        except (ResultExpiredError, RunNotFoundError):
            return None
        if point is None:
            return None
        before = [e.seq async for e in self.log(run, upto=point.seq - 1) if e.kind in CHECKPOINT_KINDS][-1:]
        return self.checkpoint(head, point, before[0] if before else None, raw=raw)

    async def result(self, head: Head, *, raw: bool = False) -> Any:
        """The result of a run that was completed when its head was read, built or as its tree.

        Raises RunNotFoundError when it is gone.
        """
        codec = self._registry.codec(head.flow)
        tree = await self._looked_at_again(head, self._result)
        return tree if raw else codec.decode(tree, path="result")

    async def _result(self, head: Head) -> Tree:
        if head.status != RunStatus.COMPLETED:
            raise RunInterruptedError(head.id, "it was rewound while its result was read")
        entries = await self._newest(head)
        point = last_kept(head, entries)
        if entries[-1].kind != Kind.COMPLETED:
            raise StoreDamagedError(head.id, entries[-1].seq, "it is said to be completed but its log does not end so")
        tree: Tree = read_body(head.id, entries[-1]).get("result", point.tree)
        return tree

    async def events(self, run: str, after: int | Event, follow: bool) -> AsyncIterator[Event]:
        """What happened in the run after that place; with `follow`, until the run has ended.

        Raises RunInterruptedError when it is followed and this runtime shuts down.
        """
        seq, index = _place_of(after)
        token, life = 0, None
        while True:
            if follow:
                token = await self._wait(run, token, _LOOK_AGAIN)
            # The head is read first: what it says has happened is in the log that is read after it.
            head = await self.head(run)
            if head is None or life not in (None, _life(head)):  # its id may have been used again
                raise RunNotFoundError(run)
            life = _life(head)
            async for entry in self.log(run, max(seq - 1, head.floor - 1)):
                verify(run, entry)
                for event in events_of(run, entry):
                    if (entry.seq, event.index) > (seq, index):
                        seq, index = entry.seq, event.index
                        yield event
            if not follow or head.status in ENDED:
                return
