"""Waits that are parked: each goes on when what it waits for has come, or its time has run out.

What that came to is committed before the code goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.core.answers import answer_value
from holdfast.core.events import when
from holdfast.core.failures import failure_tree
from holdfast.core.history import Signal
from holdfast.core.journal import Record
from holdfast.engine.notes import told_of
from holdfast.engine.uncut import uncut
from holdfast.errors import AnswerError, HoldfastError
from holdfast.frames import Place
from holdfast.model import Kind

if TYPE_CHECKING:
    from holdfast.engine.scope import StepScope


class Parked:
    """A wait that its code has come to and that has not ended."""

    __slots__ = ("body", "declared", "ending", "future", "key", "place", "signal", "timing", "work")

    def __init__(self, place: Place, body: dict[str, Any], future: asyncio.Future[Any], declared: Any = None) -> None:
        self.place, self.key, self.body, self.future, self.declared = place, place.key, body, future, declared
        self.ending = False
        """Whether what it waits for has come and is being written."""
        self.timing = False
        """Whether its time has run out and is being told."""
        self.work: asyncio.Task[Any] | None = None
        """What writes what has come for it."""
        self.signal: Signal | None = None
        """The message that it gets."""


class Parking:
    """The parked waits of one attempt."""

    def __init__(self, scope: StepScope) -> None:
        self._scope, self._host = scope, scope.host
        self.parked: dict[str, Parked] = {}
        """By their keys."""
        self.open = {record.key: record.body for record in self._host.journal.open_waits()}
        """The waits in the log that nothing has ended, also those that the code has not come to yet."""
        self.background: set[asyncio.Task[Any]] = set()
        """What is done beside the code of the run."""
        self._clockwork: asyncio.Task[None] | None = None
        self._due_first: float | None = None
        self._host.inbox.changed = self.match

    async def park(self, place: Place, body: dict[str, Any], declared: Any) -> Record:
        """The entry that ends the wait, once there is one."""
        parked = Parked(place, body, self._scope.loop.create_future(), declared)
        self.parked[place.key] = parked
        self._scope.parked(place.frame, 1)
        self.match()
        if body["wait"] == "child":
            self.do_beside(self._look_at_child(parked))
        self._wind_up()
        try:
            record: Record = await parked.future
            return record
        except asyncio.CancelledError:
            if not self._scope.closed:
                await uncut(self.give_up(parked))
            raise
        finally:
            self.parked.pop(place.key, None)
            self._scope.parked(place.frame, -1)

    async def give_up(self, parked: Parked) -> None:
        """The code around it does not wait any longer. A message that had come for it is there for the next one."""
        if parked.work is not None:
            await asyncio.wait({parked.work})
        parked.ending = parked.timing = True
        if parked.signal is not None:
            self._host.inbox.put_back(parked.signal)
        about = {"ask": parked.body["ask"]} if parked.body["wait"] == "ask" else {}
        await self._write(parked, {"abandoned": True, **about})

    # What comes

    def match(self) -> None:
        """Give what has come to whoever waits for it, in the order in which they began to wait."""
        inbox = self._host.inbox
        for parked in list(self.parked.values()):
            if parked.ending or self._scope.closed:
                continue
            kind = parked.body["wait"]
            if kind == "ask" and parked.body["ask"] in inbox.answers:
                mail, body = inbox.answers[parked.body["ask"]]
                self._end(parked, self._answered(parked, mail.id, body))
            elif kind == "receive":
                signal = next((one for one in inbox.signals if waits_for(parked.body, one)), None)
                if signal is not None:
                    inbox.signals.remove(signal)
                    parked.signal = signal
                    outcome = {"topic": signal.topic, "signal": signal.seq, "result": signal.data}
                    self._end(parked, self._write(parked, outcome, Kind.RECEIVED))
            elif kind == "child" and parked.body["run"] in inbox.ended:
                self.do_beside(self._look_at_child(parked))
        inbox.ended.clear()  # whoever begins to wait for one later looks by itself

    async def _answered(self, parked: Parked, mail: int, body: dict[str, Any]) -> None:
        about = {"ask": body["ask"]}
        if "value" not in body:
            await self._write(parked, {**timed_out(parked.body), **about}, take=(mail,))
            return
        fits, host = parked.body["schema"] is not None, self._host
        try:
            if fits:
                answer_value(parked.declared, host.codec.decode(body["value"], path="answer"))
        except AnswerError as error:
            # Only the code of the type could tell. The one who answered is gone: the next attempt asks again.
            failure = failure_tree(error, host.codec, host.failures)
            await self._write(parked, {**about, "error": failure}, take=(mail,))
            return
        await self._write(parked, {**about, "result": body["value"], "fits": fits}, Kind.ANSWER, take=(mail,))

    async def _look_at_child(self, parked: Parked) -> None:
        ended = await self._host.children.outcome(parked.body["run"])
        if ended is None or parked.ending or parked.key not in self.parked:
            return
        parked.ending = True
        how, flow, what = ended
        outcome = {
            how: failure_tree(what, self._host.codec, self._host.failures) if how == "error" else what,
            "flow": flow,
        }
        await self._write(parked, {**outcome, "run": parked.body["run"]})

    def _end(self, parked: Parked, work: Coroutine[Any, Any, None]) -> None:
        parked.ending = True
        parked.work = self.do_beside(work)

    def do_beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do it beside the code of the run, which is let go only when it is done."""
        task = asyncio.ensure_future(self._safely(work))
        self.background.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _safely(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HoldfastError as error:
            self._host.failed(error)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.background.discard(task)
        self._scope.look_around()

    async def _write(
        self, parked: Parked, outcome: dict[str, Any], kind: Kind = Kind.CALL, take: tuple[int, ...] = ()
    ) -> None:
        """Commit what the wait came to, and let its code go on."""
        place, host = parked.place, self._host
        body = {**told_of(place, host.writer), **outcome}
        self.open.pop(place.key, None)
        others = describe(*self.open.values()) if self.open else None
        seq = await host.notes.write(kind, body, take=take, waiting_for=others)
        host.journal.add(kind, seq, body)
        if not parked.future.done():
            parked.future.set_result(Record(place.key, kind, seq, body))

    # Time

    def _wind_up(self) -> None:
        """See to it that somebody looks when the first of them is due."""
        first = self.first_due()
        if first is None or (self._due_first is not None and self._due_first <= first):
            return
        if self._clockwork is not None:
            self._clockwork.cancel()
        self._due_first = first
        self._clockwork = asyncio.ensure_future(self._watch(first))

    def first_due(self) -> float | None:
        """When the first of them is due."""
        waiting = [one.body for one in self.parked.values() if not (one.timing or one.ending)]
        return min((body["until"] for body in waiting if body.get("until") is not None), default=None)

    async def _watch(self, first: float) -> None:
        # Slept for and then looked at: a clock set forward does not end the sleep, one set back makes it longer.
        while (left := first - self._host.clock.now()) > 0:
            await self._host.clock.sleep(left)
        self._due_first = self._clockwork = None
        now = self._host.clock.now()
        for parked in list(self.parked.values()):
            until = parked.body.get("until")
            if until is not None and until <= now and not (parked.timing or parked.ending):
                parked.timing = True
                self.do_beside(self._time_out(parked))
        self._wind_up()

    async def _time_out(self, parked: Parked) -> None:
        kind, host = parked.body["wait"], self._host
        if kind == "sleep":
            parked.ending = True
            await self._write(parked, {"result": None})
            return
        if kind == "ask":
            # At the door, as an answer would be: whichever is first there counts, and the other is told so.
            await host.post("timeout", parked.body["ask"])
        await host.look()
        if kind == "receive":
            await host.notes.settle()  # a message that was there in time is received, however late it is noticed
        self.match()
        if kind == "receive" and not parked.ending and parked.key in self.parked:
            parked.ending = True
            await self._write(parked, timed_out(parked.body))

    def close(self) -> None:
        """Nothing more is waited for here."""
        self._host.inbox.changed = lambda: None
        if self._clockwork is not None:
            self._clockwork.cancel()
            self._clockwork = None


def waits_for(body: dict[str, Any], signal: Signal) -> bool:
    """Whether a `receive` may have this message: of its topic, and sent in time, however late it is noticed."""
    until = body.get("until")
    return signal.topic == body["topic"] and (until is None or signal.at <= until)


def timed_out(body: dict[str, Any]) -> dict[str, Any]:
    """What a wait comes to whose time has run out."""
    return {"timed_out": True, "what": _described(body), "seconds": body.get("seconds")}


def describe(*bodies: dict[str, Any]) -> str:
    """What is waited for, for people. Children come first: whoever looks for parents tells them by it."""
    first = sorted(bodies, key=lambda body: body["wait"] != "child")[:3]
    return "; ".join(map(_described, first)) + (f"; and {len(bodies) - 3} more" if len(bodies) > 3 else "")


def _described(body: dict[str, Any]) -> str:
    match body["wait"]:
        case "ask":
            question = body["question"]
            shown = question if len(question) <= 100 else f"{question[:99]}…"
            return f"an answer to {shown!r} (ask {body['ask']})"
        case "receive":
            return f"a message on {body['topic']!r}"
        case "child":
            return f"child run {body['run']}"
        case _:
            return f"the time {when(body['until']).isoformat(timespec='seconds')}"
