"""Waits: committed, then parked. A run that does nothing but wait is let go and needs no process.

    the wait is in the log → parked → what it waits for is committed → its code goes on
                                  ↘ nothing else is under way → the run is let go → replayed when it is due

A run is let go when no call is under way, nothing is being written, and nothing is due within moments.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.core.answers import answer_value
from holdfast.core.failures import failure_of
from holdfast.core.journal import Record
from holdfast.core.keys import digest
from holdfast.engine.notes import told_of
from holdfast.engine.parking import Parked, Parking, describe, timed_out, waits_for
from holdfast.engine.progress import Mark
from holdfast.engine.uncut import uncut
from holdfast.errors import CallAbandonedError, UsageError, WaitTimeoutError
from holdfast.frames import Frame, Place
from holdfast.inside import NOTHING
from holdfast.model import Kind

if TYPE_CHECKING:
    from holdfast.engine.scope import StepScope

STILL_FOR = 0.1
MOMENTS = 0.5


class LeftWith(NamedTuple):
    """What a run that was let go waits for: in words, when it is due, and its open questions."""

    what: str
    due: float | None
    asks: tuple[str, ...]
    unasked: tuple[str, ...]
    """The keys of waits for children that are open in the log and that its code has not come to."""


class Waits:
    """The waits of one attempt."""

    def __init__(self, scope: StepScope) -> None:
        self._scope, self._host = scope, scope.host
        self._parking = Parking(scope)
        self._parked, self._open = self._parking.parked, self._parking.open
        self._given_up: list[asyncio.Future[None]] = []
        self._held = 0
        self._still: asyncio.TimerHandle | None = None
        self._left: list[dict[str, Any]] = []
        """The waits with which the run was let go."""
        self.left_with: LeftWith | None = None
        """Set when the run is let go; None when it leaves with something that it could do at once."""

    # Waiting

    async def wait(self, place: Place, body: dict[str, Any], declared: Any, default: Any) -> Any:
        """What comes of the wait, now or when it came before."""
        _refuse_inside_firm_call(place)
        record = self._host.journal.find(place.key)
        if record is None or (record.ended is None and record.kind != Kind.WAIT):
            await self._scope.hold(place)
            record = await self._begin_wait(place, body)
        elif place.name in ("ask", "receive", "spawn") and place.args is not None:
            self._compare(place, record)
        if record.ended is None:
            record = await self._parking.park(place, record.body, declared)
        if record.ended == "abandoned":
            await self.stand_still(place)
        return self._value(record, declared, default)

    def _compare(self, place: Place, record: Record) -> None:
        """What was asked stays asked, and its answer is used; that the code asks something else now is told."""
        before = record.body.get("args")
        if before is not None and before != place.args:
            self._host.tell_changed(place.key, place.name, before, place.args or "")

    async def _begin_wait(self, place: Place, body: dict[str, Any]) -> Record:
        host, seconds = self._host, body.get("seconds")
        body = {**told_of(place, host.writer), **body}
        body["at"] = host.clock.now()
        body["until"] = body.get("until") if seconds is None else body["at"] + seconds
        if body["wait"] == "ask":
            body["data"] = host.codec.encode(body["data"], path="data")
            context = host.context(place.frame.inside(None, place.key))
            # Asked again at the next attempt it is another question: what came for the one before does not count.
            body["ask"] = digest([context.idempotency_key, host.writer.seq])[:8]
        announcing = asyncio.ensure_future(self._announce(place, body))
        try:
            return await asyncio.shield(announcing)
        except asyncio.CancelledError:
            if not self._scope.closed:
                await uncut(self._withdraw(place, announcing))
            raise

    async def _announce(self, place: Place, body: dict[str, Any]) -> Record:
        self._open[place.key] = body
        seq = await self._host.notes.write(Kind.WAIT, body, waiting_for=describe(*self._open.values()))
        self._host.journal.add(Kind.WAIT, seq, body)
        return Record(place.key, Kind.WAIT, seq, body)

    async def _withdraw(self, place: Place, announcing: asyncio.Task[Record]) -> None:
        """The code around it gave the wait up just when it was being written."""
        await asyncio.wait({announcing})
        if not announcing.cancelled() and announcing.exception() is None:
            await self._parking.give_up(Parked(place, announcing.result().body, self._scope.loop.create_future()))

    def _value(self, record: Record, declared: Any, default: Any) -> Any:
        body, host = record.body, self._host
        match record.ended:
            case "timed_out":
                if default is NOTHING:
                    raise WaitTimeoutError(body["what"], body.get("seconds"))
                return default
            case "error":
                raise failure_of(body["error"], host.codec, host.failures, call=body["name"])
            case _ if record.kind == Kind.ANSWER:
                value = host.codec.decode(body["result"], path="answer")
                return answer_value(declared, value) if body.get("fits") else value
            case _ if "run" in body:
                return host.children.decode(body["run"], body["flow"], body["result"])
            case _:
                return host.codec.decode(body["result"], path="message")

    # Letting go

    async def hold(self, place: Place) -> None:
        """Never return: the run is to leave, and what it has not begun yet it does not begin."""
        self._held += 1
        self._scope.parked(place.frame, 1)
        try:
            await self._scope.loop.create_future()
        finally:
            self._held -= 1
            self._scope.parked(place.frame, -1)

    async def stand_still(self, place: Place) -> None:
        """A call that was given up before is waited for until nothing else happens, and is then given up again.

        Usually whatever gave it up the first time, a timeout or a failing neighbour, does so again before.
        """
        given_up: asyncio.Future[None] = self._scope.loop.create_future()
        self._given_up.append(given_up)
        self._scope.parked(place.frame, 1)
        try:
            await given_up
        finally:
            self._given_up.remove(given_up)
            self._scope.parked(place.frame, -1)
        raise CallAbandonedError(place.name)

    def look_around(self) -> None:
        """Let the run go in a moment, if there is still nothing to do but wait then."""
        if self._still is not None:
            self._still.cancel()
            self._still = None
        if self._is_still():
            delay = 0.0 if self._host.hurries else STILL_FOR
            self._still = self._scope.loop.call_later(delay, self._let_go)

    def _is_still(self) -> bool:
        waiting = self._parked or self._held or self._given_up
        if self._scope.closed or self._scope.busy or self._parking.background or not waiting:
            return False
        if any(not frame.parked for frame in self._scope.here):
            return False
        return not any(parked.ending for parked in self._parked.values())

    def _let_go(self) -> None:
        self._still = None
        if not self._is_still():
            return
        if not self._host.notes.idle:
            self._parking.do_beside(self._host.notes.settle())
            return
        if self._given_up and not self._held:
            for given_up in self._given_up:
                if not given_up.done():
                    given_up.set_result(None)
            return
        first = self._parking.first_due()
        if first is not None and first - self._host.clock.now() < MOMENTS and not self._host.hurries:
            return  # whoever watches the clock looks around again
        bodies = self._left = [parked.body for parked in self._parked.values()]
        if bodies and not self._held:
            asks = tuple(body["ask"] for body in bodies if body["wait"] == "ask")
            children = {key for key, body in self._open.items() if body["wait"] == "child"}
            self.left_with = LeftWith(describe(*bodies), first, asks, tuple(sorted(children - self._parked.keys())))
        self._host.let_go()

    @property
    def open_asks(self) -> set[str]:
        """The questions in the log that nothing has ended, also those that the code has not come to."""
        return {body["ask"] for body in self._open.values() if body["wait"] == "ask"}

    def ended_by_mail(self, ask: str) -> Mark:
        """The entry that ends a question which the code has not come to, with the answer or timeout that came."""
        wait = next(body for body in self._open.values() if body.get("ask") == ask)
        told: dict[str, Any] = {name: wait[name] for name in ("key", "name", "of", "args", "ask") if name in wait}
        came = self._host.inbox.answers[ask][1]
        if "value" not in came:
            return Kind.CALL, {**told, **timed_out(wait)}
        return Kind.ANSWER, {**told, "result": came["value"], "fits": wait["schema"] is not None}

    @property
    def has_come(self) -> bool:
        """Whether something that is waited for has come in since the run was let go.

        It is in the log, or taken out of the inbox, where nobody who looks for runs to wake would find it.
        """
        inbox = self._host.inbox
        receives = [body for body in self._left if body["wait"] == "receive"]
        children = {body["run"] for body in self._left if body["wait"] == "child"}
        come = any(waits_for(body, signal) for body in receives for signal in inbox.signals)
        return come or not children.isdisjoint(inbox.ended)

    def close(self) -> None:
        """Nothing more is waited for here; whoever is parked in a thread unwinds."""
        self._parking.close()
        if self._still is not None:
            self._still.cancel()
            self._still = None


def _refuse_inside_firm_call(place: Place) -> None:
    """Raises UsageError inside a call whose effect must not be repeated: after a wait it would run again."""
    frame: Frame | None = place.frame
    while frame is not None:
        if frame.firm:
            raise UsageError(
                f"{place.name}(...) cannot be used inside call {frame.call!r}, whose on_doubt is not 'retry': after "
                f"the wait its function would run again from its top. Wait before the call or after it."
            )
        frame = frame.parent
