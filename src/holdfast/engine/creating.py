"""New runs: each is in the store, with its first entry, before anybody is told its id or any code of it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.checksum import seal
from holdfast.core.codec import Tree, dumps, may_hold_marks
from holdfast.core.events import events_of
from holdfast.core.history import Point
from holdfast.engine.info import Info
from holdfast.engine.queueing import HERE, Placing
from holdfast.engine.writer import RunWriter
from holdfast.errors import RunExistsError, StoreError
from holdfast.model import Commit, Entry, Head, HeadChange, Kind, Refusal, RunStatus

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

# Slow to find in their enums, and every run asks for them.
_RUNNING, _PENDING, _CREATED = RunStatus.RUNNING, RunStatus.PENDING, Kind.CREATED


class Creating:
    """Belongs to one engine."""

    def __init__(self, engine: Engine, concurrency: int) -> None:
        self._engine, self._concurrency = engine, concurrency
        self._created = 0
        self.coming = 0
        """How many are on their way into the store."""

    async def create(
        self,
        run: str,
        flow: str,
        tree: Tree,
        cursor: dict[str, Any],
        *,
        digest: str,
        metadata: bytes,
        parent: str | None,
        origin: str | None = None,
        carried: dict[str, Any] | None = None,
        shape: tuple[int | None, tuple[str, ...]] = (None, ()),
        place: Placing = HERE,
    ) -> tuple[Head, RunWriter]:
        """A new run, durable when this returns: owned by this process, or by nobody when its place is in a queue.

        Raises RunExistsError when the id is taken.
        """
        engine = self._engine
        self._created += 1
        info = Info(digest, f"{engine.ownership.id}-{self._created}", *shape)
        head = self._head(run, flow, info, metadata, parent, place)
        point = _first(head, tree, cursor, {"nonce": info.nonce, "from": origin, **(carried or {})})
        self.coming += 1
        try:
            reply = await engine.committer.commit(_commit(head, point.entry))
            if reply.refused is Refusal.EXISTS:
                raise RunExistsError(run)
            if reply.refused is not None:
                raise StoreError(f"run {run} could not be created: {reply.refused}")
        except StoreError:
            if head.fence:
                engine.custody.doubt(run)
            raise
        finally:
            self.coming -= 1
        if engine.observed:
            for event in events_of(run, point.entry):
                engine.emit(event)
        writer = RunWriter(engine.committer, engine.clock, head, point)
        writer.seq, writer.written = 1, (point.entry,)
        return head, writer

    def _head(self, run: str, flow: str, info: Info, metadata: bytes, parent: str | None, place: Placing) -> Head:
        engine, queued = self._engine, place.delay is not None
        # To the microsecond, which is all that the datetime of a page cursor holds.
        now = int(engine.clock.now() * 1_000_000) / 1_000_000
        has_room = len(engine.live) + self.coming < self._concurrency
        runs_now = has_room and not queued and engine.registry.has(flow)
        return Head(
            id=run,
            flow=flow,
            status=_RUNNING if runs_now else _PENDING,
            owner=engine.ownership.id,
            fence=0 if queued else 1,
            attempt=0 if queued else 1,
            wake_at=now + place.delay if place.delay else None,
            queue=place.queue,
            priority=place.priority,
            key=place.key,
            metadata=metadata,
            info=msgspec.json.encode(info),
            parent=parent,
            created_at=now,
            started_at=now if runs_now else None,
        )


def _first(head: Head, tree: Tree, cursor: dict[str, Any], body: dict[str, Any]) -> Point:
    """The new run at its first entry."""
    encoded = dumps({**body, "state": tree, "branch": 0})
    entry = seal(head.id, 1, _CREATED, head.fence, head.created_at, dumps(cursor), encoded)
    point = Point(entry, tree, cursor, 1, 0, len(encoded), body)
    point.plain = not may_hold_marks(encoded)
    return point


def _commit(head: Head, entry: Entry) -> Commit:
    """What writes it. One that goes into a queue, which has no fence yet, is given up by the same commit."""
    assert head.owner is not None
    change = None if head.fence else HeadChange(owner=None)
    return Commit(run=head.id, owner=head.owner, fence=head.fence, create=head, entries=(entry,), change=change)
