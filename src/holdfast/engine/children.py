"""Runs that belong to another run: started once, followed to their end, cancelled with their parent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.core.codec import Tree, dumps
from holdfast.core.transitions import ENDED
from holdfast.engine.info import Info
from holdfast.engine.queueing import HERE, Placing
from holdfast.engine.refusals import ended_error
from holdfast.errors import (
    HoldfastError,
    InputChangedError,
    RunExistsError,
    RunInterruptedError,
    RunNotFoundError,
    StoreDamagedError,
    StoreError,
    VerbRefusedError,
    WrongFlowError,
)
from holdfast.model import Head, Mail, Query, RunStatus

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.engine.reader import Reader
    from holdfast.engine.verbs import Verbs

log = logging.getLogger("holdfast")

_EVERYTHING = 1_000_000_000


class Family:
    """The children of the runs of one engine."""

    def __init__(self, engine: Engine, reader: Reader, verbs: Verbs, tend: Callable[[Head], Awaitable[None]]) -> None:
        """`tend` sees to it that a run goes on which nobody drives."""
        self._engine, self._reader, self._verbs, self._tend = engine, reader, verbs, tend
        self._starting: dict[str, set[asyncio.Future[Any]]] = {}
        """By parent: the children that are being started."""

    def know(self, flow: Any) -> None:
        """Runs of this flow can be gone on with here from now on."""
        self._engine.registry.add(flow)

    async def ensure(
        self, flow: Any, input: Any, id: str, parent: str, *, again: bool = False, chosen: bool = True
    ) -> str | None:
        """Return when the child exists; started if it did not, taken up here if nobody drives it.

        `again` says that its failure has failed an attempt of the parent: it is tried again with the parent. When it
        was started with another input, that is an error if its id was `chosen`. One that was made of its place is
        that child whatever its input is now: gives the digest of the one that it has.

        Raises RunExistsError when the id belongs to a run of somebody else, and RunInterruptedError when nothing is
        started here any more.
        """
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        starting = self._starting.setdefault(parent, set())
        starting.add(started)
        try:
            return await self._ensure(flow, input, id, parent, again=again, chosen=chosen)
        finally:
            started.set_result(None)
            starting.discard(started)
            if not starting:
                self._starting.pop(parent, None)

    async def _ensure(self, flow: Any, input: Any, id: str, parent: str, *, again: bool, chosen: bool) -> str | None:
        self.know(flow)
        if self._engine.closing:
            raise RunInterruptedError(parent)
        try:
            place = self._place(flow, parent)
            if place.delay is None:
                await self._verbs.start(flow, input, id, None, parent, place)
            else:
                await self._verbs.enqueue(flow, input, id, None, parent, place)
        except RunExistsError:
            head = await self._head(id)
            if head.parent != parent:
                raise
            if head.flow != flow.name:
                raise WrongFlowError(id, head.flow, flow.name) from None
            before = msgspec.json.decode(head.info, type=Info).digest
            changed = self._verbs.digest(flow, input) != before
            if changed and chosen:
                raise InputChangedError(id) from None
            if again and head.status == RunStatus.FAILED:
                await self._verbs.resume(id)
            else:
                await self._tend(head)
            return before if changed else None
        return None

    def _place(self, flow: Any, parent: str) -> Placing:
        """In the queue of its parent: driven here if there is room, else by whoever has some.

        Only a process that takes runs from queues may leave a child there: it sees to it that somebody does.
        """
        live, engine = self._engine.live.get(parent), self._engine
        if live is None:
            return HERE
        head = live.runner.host.head
        shared = engine.works and (engine.turns.free <= 0 or getattr(flow, "limit", None) is not None)
        return Placing(head.queue, head.priority, None, 0.0 if shared else None)

    async def outcome(self, id: str) -> tuple[Literal["result", "error"], str, Any] | None:
        """("result", flow, tree) or ("error", flow, exception) of a child that has ended; None while it has not.

        One that nobody drives is taken up here.
        """
        try:
            head = await self._head(id)
            if head.status == RunStatus.COMPLETED:
                return "result", head.flow, await self._reader.result(head, raw=True)
            if head.status in ENDED:
                return "error", head.flow, ended_error(head)
        except HoldfastError as error:
            # What a damaged child came to is lost to its parent as that of a deleted one is.
            if isinstance(error, StoreError) and not (isinstance(error, StoreDamagedError) and error.run_id == id):
                raise
            return "error", "", error
        await self._tend(head)
        return None

    def decode(self, id: str, flow: str, tree: Tree) -> Any:
        """The result of a child, built anew."""
        return self._engine.registry.codec(flow).decode(tree, path=f"result of {id}")

    async def cancel(self, run: str, reason: str | None) -> None:
        """Cancel every child of a run, also those that are only just being started."""
        while starting := self._starting.get(run):
            await asyncio.wait(starting)
        for head in await self._engine.store.list_heads(Query(parent=run, limit=_EVERYTHING)):
            if head.status not in ENDED:
                await self.stop(head.id, reason)

    async def stop(self, id: str, reason: str | None) -> None:
        """Cancel one child, unless it has ended."""
        try:
            await self._verbs.stop("cancel", id, reason)
        except (VerbRefusedError, RunNotFoundError):
            pass  # it ended meanwhile
        except StoreDamagedError as error:
            log.warning("holdfast: child %s was not cancelled: %s", id, error)

    async def ended(self, run: str, parent: str) -> None:
        """Tell the parent. If this process dies before, whoever looks after the parent finds out by itself."""
        try:
            await self._engine.store.post_mail(parent, Mail("child", dumps({"run": run})))
            await self._engine.postman.fetch(parent)
        except StoreError as error:
            log.warning("holdfast: run %s could not be told that its child %s ended: %s", parent, run, error)

    async def _head(self, id: str) -> Head:
        head = await self._reader.head(id)
        if head is None:
            raise RunNotFoundError(id)
        return head
