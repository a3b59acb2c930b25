"""Runs that nobody drives any more are found, once, and taken up."""

from __future__ import annotations

import logging

import msgspec

from holdfast.core.transitions import RECOVERABLE, WAITS, is_queued
from holdfast.engine.engine import Engine
from holdfast.engine.live import LiveRun
from holdfast.errors import StepMissingError, StoreDamagedError, StoreUnavailableError
from holdfast.model import Claim, Head, Query

log = logging.getLogger("holdfast")

_PAGE = 500
_EVERYTHING = 1_000_000_000
_SOON, _LONG = 1.0, 60.0  # seconds for which a run is left alone that could not be gone on with


class Recovery:
    """Looks after the runs of one store with the flows of one program."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._warned: set[str] = set()
        self._refused: dict[str, tuple[int, Exception]] = {}
        """By run: why it could not be gone on with when that was last tried, and with which fence."""
        self._unfit: dict[str, float] = {}
        """By run, on the loop's clock: those that could not be gone on with are left alone until then."""

    @property
    def left_alone(self) -> tuple[str, ...]:
        """The runs that are not tried for now: a claim of each would come to nothing again."""
        now = self._engine.loop.time()
        self._unfit = {run: until for run, until in self._unfit.items() if until > now}
        return tuple(self._unfit)

    def _leave_alone(self, run: str, seconds: float) -> None:
        self._unfit[run] = self._engine.loop.time() + seconds

    def refusal(self, head: Head) -> Exception | None:
        """Why a run that waits cannot be gone on with here, as far as that is known. Told once: it is tried again."""
        if not self._engine.registry.has(head.flow):
            return None  # others may
        fence, error = self._refused.pop(head.id, (0, None))
        if error is not None:
            self._unfit.pop(head.id, None)
        return self._missing(head) or (error if fence == head.fence else None)  # unless somebody has had it since

    async def interrupted(self) -> list[Head]:
        """The runs that could be taken up here: nobody has them, and the program has their flow.

        What waits in a queue has not been interrupted: it is left to the workers.
        """
        if not (names := self._engine.registry.names):
            return []
        found = await self._engine.store.list_heads(Query(states=RECOVERABLE, flows=names, limit=_EVERYTHING))
        return [head for head in found if not is_queued(head)]

    async def recover(self) -> list[LiveRun]:
        """Take up what nobody drives, oldest first."""
        return await self._engine.to_its_end(self._recover())

    async def _recover(self) -> list[LiveRun]:
        await self.warn_of_strangers()
        ready = [head for head in await self.interrupted() if self._has_step(head)]
        ready = [head for head in reversed(ready) if head.id not in self._engine.live]
        return await self._take_up(ready, RECOVERABLE)

    async def _take_up(self, ready: list[Head], states: tuple[tuple[str, bool | None], ...]) -> list[LiveRun]:
        taken: list[LiveRun] = []
        for start in range(0, len(ready), _PAGE):
            page = {head.id: head for head in ready[start : start + _PAGE]}
            ids = tuple(page)
            # The states are asked for again: what has been paused or finished meanwhile is left alone.
            limits = self._engine.registry.limits
            query = Query(
                ids=ids,
                states=states,
                flows=self._engine.registry.names,
                limit=len(ids),
                in_turn=bool(limits),
                limits=limits,
            )
            try:
                claims = await self._engine.custody.claim(query) if not self._engine.closing else []
            except StoreDamagedError as error:  # some stores tell so of the only run that is asked for
                if error.run_id not in page:
                    raise
                self.refuse(error.run_id, page[error.run_id].fence, error)
                continue
            place = {run: at for at, run in enumerate(ids)}
            for claim in sorted(claims, key=lambda claim: place[claim.head.id]):
                live = await self.take(claim)
                if live is not None:
                    taken.append(live)
        return taken

    async def wake(self, heads: list[Head]) -> list[LiveRun]:
        """Take up those of these runs that still wait and that this program can go on with."""
        ready = [head for head in heads if self._engine.registry.has(head.flow) and self._has_step(head)]
        but = {*self._engine.live, *self.left_alone}
        ready = [head for head in ready if head.id not in but]
        return await self._engine.to_its_end(self._take_up(ready, WAITS)) if ready else []

    async def take(self, claim: Claim) -> LiveRun | None:
        """Go on with a claimed run; None when that cannot be and it was given back, warned of if it is to blame."""
        self._refused.pop(claim.head.id, None)
        if not self._has_step(claim.head):
            self._leave_alone(claim.head.id, _LONG)
            await self._engine.custody.give_back(claim)
            return None
        try:
            return await self._engine.taking.take(claim, self._engine.taking.writer(claim))
        except StoreUnavailableError:  # nothing is wrong with the run
            self._leave_alone(claim.head.id, _SOON)
            await self._engine.custody.give_back(claim)
            return None
        except Exception as error:  # whatever a tampered head makes fail
            # A damaged run is reported and left alone; the others go on.
            self.refuse(claim.head.id, claim.head.fence, error)
            await self._engine.custody.give_back(claim)
            return None

    def refuse(self, run: str, fence: int, error: Exception) -> None:
        """Say, once, why a run cannot be gone on with, and leave it alone for long."""
        self._leave_alone(run, _LONG)
        self._refused[run] = fence, error
        self._warn(run, f"run {run} was not resumed: {error}")

    def refused(self, run: str) -> bool:
        """Whether that was just so."""
        return run in self._refused and run in self.left_alone

    async def warn_of_strangers(self) -> None:
        """Say, once for each flow, that runs of it wait for a program that has it."""
        known = self._engine.registry.names
        for head in await self._engine.store.list_heads(Query(states=RECOVERABLE, limit=_PAGE)):
            if head.flow not in known:
                message = (
                    f"run {head.id} was not resumed: flow {head.flow!r} is not registered here. "
                    f"Its runs wait for a program that registers it"
                )
                self._warn(f"flow {head.flow}", message)

    def _has_step(self, head: Head) -> bool:
        missing = self._missing(head)
        if missing is not None:
            self._warn(
                head.id,
                f"run {head.id} was not resumed: flow {head.flow!r} has no step {missing.step!r} any more "
                f"(it has: {', '.join(missing.known)})",
            )
        return missing is None

    def _missing(self, head: Head) -> StepMissingError | None:
        """What tells that the program has no such step as comes next in the run; None when it has."""
        flow, _ = self._engine.registry.flow(head.id, head.flow)
        try:
            cursor = msgspec.json.decode(head.cursor)
            name = cursor["next"]
        except (ValueError, TypeError, KeyError):
            return None  # damaged: found out, and reported, when it is taken up
        if name is None or flow.next_step(cursor) is not None:
            return None
        return StepMissingError(head.id, head.flow, name, flow.step_names)

    def _warn(self, about: str, message: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning("holdfast: %s", message)
