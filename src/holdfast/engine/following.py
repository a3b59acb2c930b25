"""A run followed to its end: started, continued, joined or read, wherever it is driven."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from holdfast.core.ids import check_id
from holdfast.core.transitions import ENDED, Act, Situation, act, is_queued, situation
from holdfast.engine.engine import Engine
from holdfast.engine.inbox import KINDS
from holdfast.engine.info import Info
from holdfast.engine.leaving import Outcome
from holdfast.engine.live import LiveRun
from holdfast.engine.reader import Reader
from holdfast.engine.recovery import Recovery
from holdfast.engine.refusals import ended_error
from holdfast.engine.trouble import Trouble
from holdfast.engine.verbs import MISSING, Verbs
from holdfast.engine.waking import Waker
from holdfast.errors import (
    HoldfastError,
    InputChangedError,
    NotLoadableError,
    RunExistsError,
    RunInterruptedError,
    RunOwnedError,
    RunWaitingError,
    StepMissingError,
    StoreDamagedError,
    StoreUnavailableError,
    UsageError,
    VerbRefusedError,
    WrongFlowError,
)
from holdfast.flows.base import Flow
from holdfast.model import Head, Query, RunStatus

_LOOK_AGAIN = 1.0
_LOOK_SELDOM = 10.0
_EVERYTHING = 1_000_000_000
_GOING_ON = tuple((status, None) for status in RunStatus if status not in ENDED)

Until = Literal["ended", "settled"]


class Following:
    """Belongs to one runtime."""

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        verbs: Verbs,
        waker: Waker,
        children_ended: Callable[[Head], Awaitable[bool]],
        recovery: Recovery,
    ) -> None:
        """`children_ended` tells whether a child that the run waits for has ended."""
        self._engine, self._reader, self._verbs, self._waker = engine, reader, verbs, waker
        self._children_ended, self._recovery = children_ended, recovery
        self._introduced: set[str] = set()
        """The runs that were taken up so that their code makes the flows of their children known."""

    async def run(
        self,
        flow: Flow[Any],
        input: Any,
        run: str | None,
        metadata: dict[str, Any] | None,
        parent: str | None,
        until: Until,
    ) -> Any:
        """Start the run, continue it, or give its result."""
        if until not in ("ended", "settled"):
            raise UsageError(f"until={until!r}: it is 'ended' or 'settled'")
        self._engine.registry.add(flow)
        if run is not None:
            check_id(run)
        # Most are new, and the store tells when one is not. A run without an input is more likely to be there.
        head = None if run is None or input is not MISSING else await self._reader.head(run)
        while head is None:
            try:
                outcome = await self._verbs.carry_out(flow, input, run, metadata, parent)
            except Exception as error:
                # Either it is there already; or it cannot be made, which is no matter if it is there.
                head = None if run is None else await self._reader.head(run)
                if head is None and not (isinstance(error, RunExistsError) and error.run_id == run):
                    raise
            else:
                return await self._come_to(outcome, until)
        if head.flow != flow.name:
            raise WrongFlowError(head.id, head.flow, flow.name)
        if input is not MISSING and self._verbs.digest(flow, input) != _digest(head):
            raise InputChangedError(head.id)
        return await self.follow(head.id, until=until)

    async def outcome(self, live: LiveRun, *, until: Until = "ended") -> Any:
        """What a run that is live here comes to. Giving up the wait does not stop the run."""
        return await self._come_to(await live.done.wait(), until)

    async def _come_to(self, outcome: Outcome, until: Until) -> Any:
        if isinstance(outcome.error, RunWaitingError):
            return await self.follow(outcome.error.run_id, until=until)
        return _given(outcome)

    async def attend(self, run: str) -> Any:
        """The result of a run that is left to the workers, whatever becomes of it meanwhile."""
        token, trouble = 0, Trouble(f"the result of run {run} could not be looked for")
        while run not in self._engine.live:
            if self._engine.closing:
                raise RunInterruptedError(run)
            try:
                head = await self._verbs.head(run)
                match act("run", situation(head)):
                    case Act.RESULT:
                        return await self._reader.result(head)
                    case Act.RAISE:
                        raise ended_error(head)
                trouble.over()
                token = await self._engine.wait_change(run, token, _LOOK_AGAIN)
            except StoreUnavailableError as error:
                # Whoever waits for a fleet waits through a restart of its server too.
                trouble.met(error)
                await asyncio.sleep(_LOOK_AGAIN)
        return await self.follow(run)

    async def follow(self, run: str, *, until: Until = "ended", seen: LiveRun | None = None) -> Any:
        """The result of a run, wherever it is driven; taken up here when nobody has it, or when it is due.

        `seen` is the run as it was live here: what it came to need not be read again.
        """
        token, tended, tend_at = 0, -1, 0.0
        live: LiveRun | None = None
        while True:
            live = live or self._engine.live.get(run)
            if live is not None:
                outcome, live = await live.done.wait(), None
                if not isinstance(outcome.error, RunWaitingError):
                    return _given(outcome)
                continue  # not by calling `_come_to`: it may be let go any number of times
            if self._engine.closing:
                raise RunInterruptedError(run)  # whoever has it goes on with it; nothing is taken up here any more
            head = await self._verbs.head(run)
            where = situation(head)
            match act("run", where):
                case Act.RESULT:
                    if seen is not None and seen.runner.ended_as(head):
                        return seen.runner.result()
                    return await self._reader.result(head)
                case Act.RAISE:
                    if seen is not None and seen.runner.ended_as(head):
                        return await self.outcome(seen)  # which still has the cause
                    raise ended_error(head)
                case Act.TAKE:
                    try:
                        live = await self._verbs.take(run)
                        await self._tend_children(run)
                    except (RunOwnedError, VerbRefusedError) as error:
                        if error.run_id != run:
                            raise
                        # Somebody else was quicker; or the store lets nobody have it, and then it is not tried at once.
                        token = await self._engine.wait_change(run, token, _LOOK_AGAIN)
                case _:
                    patience = _LOOK_AGAIN
                    if where is Situation.WAITING:
                        if (refusal := self._recovery.refusal(head)) is not None:
                            raise refusal
                        if "child run" not in (head.waiting_for or "") and until == "ended":
                            patience = _LOOK_SELDOM  # the waker knows when it is due
                        now = asyncio.get_running_loop().time()
                        if head.fence != tended or now >= tend_at:
                            # Not at every change of the store: a thousand that are followed would ask a thousand times.
                            tended, tend_at = head.fence, now + patience
                            await self.tend(head)
                        if until == "settled" and await self._settled(head):
                            raise RunWaitingError(run, head.waiting_for)
                    token = await self._engine.wait_change(run, token, patience)

    async def tend(self, head: Head) -> None:
        """See to it that a run goes on which nobody may be driving: here, if this program has its flow."""
        if head.id in self._engine.live or self._engine.closing or not self._engine.registry.has(head.flow):
            return
        match situation(head):
            case Situation.RESUMABLE:
                if self._engine.works and is_queued(head):
                    return  # it gets its turn
                if self._recovery.refused(head.id):
                    return
                try:
                    await self._verbs.take(head.id)
                except (StoreDamagedError, NotLoadableError, StepMissingError) as error:
                    self._recovery.refuse(head.id, head.fence, error)
                except HoldfastError:
                    pass  # somebody else was quicker, or it cannot be gone on with: whoever follows it finds out
            case Situation.WAITING:
                self._waker.watch(head.id, head.wake_at)
                strangers = await self._tend_children(head.id)
                if strangers and head.id not in self._introduced:
                    # Flows of children become known as the parent spawns them, and in this process it has not run yet.
                    # Without this, parent and child would wait for each other after a crash.
                    self._introduced.add(head.id)
                    await self._recovery.wake([head])

    async def _tend_children(self, run: str) -> bool:
        """The same for the children of a run, also those that its code does not wait for.

        Whether the flow of one of them is not known here.
        """
        children = await self._children(run)
        for child in children:
            await self.tend(child)
        return any(not self._engine.registry.has(child.flow) for child in children)

    async def _children(self, run: str) -> list[Head]:
        return await self._engine.store.list_heads(Query(parent=run, states=_GOING_ON, limit=_EVERYTHING))

    async def _settled(self, head: Head) -> bool:
        """Whether nothing goes on until something comes from outside, or its time does."""
        if head.wake_at is not None and head.wake_at <= self._engine.clock.now():
            return False
        if await self._engine.store.list_heads(Query(ids=(head.id,), has_mail=True, mail_kinds=KINDS, limit=1)):
            return False
        for child in await self._children(head.id):
            where = situation(child)
            refused = where is not Situation.LIVE and self._recovery.refused(child.id)
            if refused or not self._engine.registry.has(child.flow):
                continue  # nobody goes on with it here
            if where in (Situation.LIVE, Situation.RESUMABLE):
                return False
            if where is Situation.WAITING and not await self._settled(child):
                return False
        if await self._children_ended(head):
            return False  # it has not been told yet
        now = await self._reader.head(head.id)
        return now is not None and now.fence == head.fence and situation(now) is Situation.WAITING

    async def result(self, run: str, *, raw: bool) -> Any:
        """The result of a completed run; raises what it has come to otherwise."""
        head = await self._verbs.head(run)
        where = situation(head)
        if where is Situation.COMPLETED:
            return await self._reader.result(head, raw=raw)
        raise RunOwnedError(run, head.owner) if where is Situation.LIVE else ended_error(head)


def _given(outcome: Outcome) -> Any:
    """The result, or what is raised in its place."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


def _digest(head: Head) -> str:
    return msgspec.json.decode(head.info, type=Info).digest
