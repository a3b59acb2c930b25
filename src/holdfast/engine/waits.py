"""Waits: committed, then parked. A run that does nothing but wait is let go and needs no process.

    the wait is in the log → parked → what it waits for is committed → its code goes on
                                  ↘ nothing else is under way → the run is let go → replayed when it is due

A run is let go when no call is under way, nothing is being written, and nothing is due within moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.context import Frame, Place
from holdfast.core.answers import answer_value
from holdfast.core.events import when
from holdfast.core.failures import failure_of, failure_tree
from holdfast.core.history import Signal
from holdfast.core.journal import Record
from holdfast.core.keys import digest
from holdfast.engine.notes import told_of
from holdfast.engine.writer import Mark
from holdfast.errors import AnswerError, CallAbandonedError, HoldfastError, UsageError, WaitTimeoutError
from holdfast.inside import NOTHING
from holdfast.model import Kind

if TYPE_CHECKING:
    from holdfast.engine.scope import StepScope

STILL_FOR = 0.1
MOMENTS = 0.5


class _Parked:
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


def _waits_for(body: dict[str, Any], signal: Signal) -> bool:
    """Whether a `receive` may have this message: of its topic, and sent in time, however late it is noticed."""
    until = body.get("until")
    return signal.topic == body["topic"] and (until is None or signal.at <= until)


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
        self._parked: dict[str, _Parked] = {}
        self._open = {record.key: record.body for record in self._host.journal.open_waits()}
        """The waits in the log that nothing has ended, also those that the code has not come to yet."""
        self._given_up: list[_Parked] = []
        self._held = 0
        self._background: set[asyncio.Task[Any]] = set()
        self._still: asyncio.TimerHandle | None = None
        self._clockwork: asyncio.Task[None] | None = None
        self._due_first: float | None = None
        self._host.inbox.changed = self.match
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
            record = await self._park(place, record.body, declared)
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
                await self._scope.uncut(self._withdraw(place, announcing))
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
            await self._give_up(_Parked(place, announcing.result().body, self._scope.loop.create_future()))

    async def _park(self, place: Place, body: dict[str, Any], declared: Any) -> Record:
        parked = _Parked(place, body, self._scope.loop.create_future(), declared)
        self._parked[place.key] = parked
        self._scope.parked(place.frame, 1)
        self.match()
        if body["wait"] == "child":
            self._begin(self._look_at_child(parked))
        self._wind_up()
        try:
            record: Record = await parked.future
            return record
        except asyncio.CancelledError:
            if not self._scope.closed:
                await self._scope.uncut(self._give_up(parked))
            raise
        finally:
            self._parked.pop(place.key, None)
            self._scope.parked(place.frame, -1)

    async def _give_up(self, parked: _Parked) -> None:
        """The code around it does not wait any longer. A message that had come for it is there for the next one."""
        if parked.work is not None:
            await asyncio.wait({parked.work})
        parked.ending = parked.timing = True
        if parked.signal is not None:
            self._host.inbox.put_back(parked.signal)
        about = {"ask": parked.body["ask"]} if parked.body["wait"] == "ask" else {}
        await self._write(parked, {"abandoned": True, **about})

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

    # What comes

    def match(self) -> None:
        """Give what has come to whoever waits for it, in the order in which they began to wait."""
        inbox = self._host.inbox
        for parked in list(self._parked.values()):
            if parked.ending or self._scope.closed:
                continue
            kind = parked.body["wait"]
            if kind == "ask" and parked.body["ask"] in inbox.answers:
                mail, body = inbox.answers[parked.body["ask"]]
                self._end(parked, self._answered(parked, mail.id, body))
            elif kind == "receive":
                signal = next((one for one in inbox.signals if _waits_for(parked.body, one)), None)
                if signal is not None:
                    inbox.signals.remove(signal)
                    parked.signal = signal
                    outcome = {"topic": signal.topic, "signal": signal.seq, "result": signal.data}
                    self._end(parked, self._write(parked, outcome, Kind.RECEIVED))
            elif kind == "child" and parked.body["run"] in inbox.ended:
                self._begin(self._look_at_child(parked))
        inbox.ended.clear()  # whoever begins to wait for one later looks by itself

    async def _answered(self, parked: _Parked, mail: int, body: dict[str, Any]) -> None:
        about = {"ask": body["ask"]}
        if "value" not in body:
            await self._write(parked, {**_timed_out(parked.body), **about}, take=(mail,))
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

    async def _look_at_child(self, parked: _Parked) -> None:
        ended = await self._host.children.outcome(parked.body["run"])
        if ended is None or parked.ending or parked.key not in self._parked:
            return
        parked.ending = True
        how, flow, what = ended
        outcome = {
            how: failure_tree(what, self._host.codec, self._host.failures) if how == "error" else what,
            "flow": flow,
        }
        await self._write(parked, {**outcome, "run": parked.body["run"]})

    def _end(self, parked: _Parked, work: Coroutine[Any, Any, None]) -> None:
        parked.ending = True
        parked.work = self._begin(work)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do it beside the code of the run, which is let go only when it is done."""
        task = asyncio.ensure_future(self._safely(work))
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    async def _safely(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HoldfastError as error:
            self._host.failed(error)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        self.look_around()

    async def _write(
        self, parked: _Parked, outcome: dict[str, Any], kind: Kind = Kind.CALL, take: tuple[int, ...] = ()
    ) -> None:
        """Commit what the wait came to, and let its code go on."""
        place, host = parked.place, self._host
        body = {**told_of(place, host.writer), **outcome}
        self._open.pop(place.key, None)
        others = describe(*self._open.values()) if self._open else None
        seq = await host.notes.write(kind, body, take=take, waiting_for=others)
        host.journal.add(kind, seq, body)
        if not parked.future.done():
            parked.future.set_result(Record(place.key, kind, seq, body))

    # Time

    def _wind_up(self) -> None:
        """See to it that somebody looks when the first of them is due."""
        first = self._first_due()
        if first is None or (self._due_first is not None and self._due_first <= first):
            return
        if self._clockwork is not None:
            self._clockwork.cancel()
        self._due_first = first
        self._clockwork = asyncio.ensure_future(self._watch(first))

    def _first_due(self) -> float | None:
        waiting = [one.body for one in self._parked.values() if not (one.timing or one.ending)]
        return min((body["until"] for body in waiting if body.get("until") is not None), default=None)

    async def _watch(self, first: float) -> None:
        # Slept for and then looked at: a clock set forward does not end the sleep, one set back makes it longer.
        while (left := first - self._host.clock.now()) > 0:
            await self._host.clock.sleep(left)
        self._due_first = self._clockwork = None
        now = self._host.clock.now()
        for parked in list(self._parked.values()):
            until = parked.body.get("until")
            if until is not None and until <= now and not (parked.timing or parked.ending):
                parked.timing = True
                self._begin(self._time_out(parked))
        self._wind_up()

    async def _time_out(self, parked: _Parked) -> None:
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
        if kind == "receive" and not parked.ending and parked.key in self._parked:
            parked.ending = True
            await self._write(parked, _timed_out(parked.body))

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
        parked = _Parked(place, {}, self._scope.loop.create_future())
        self._given_up.append(parked)
        self._scope.parked(place.frame, 1)
        try:
            await parked.future
        finally:
            self._given_up.remove(parked)
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
        if self._scope.closed or self._scope.busy or self._background or not waiting:
            return False
        if any(not frame.parked for frame in self._scope.here):
            return False
        return not any(parked.ending for parked in self._parked.values())

    def _let_go(self) -> None:
        self._still = None
        if not self._is_still():
            return
        if not self._host.notes.idle:
            self._begin(self._host.notes.settle())
            return
        if self._given_up and not self._held:
            for parked in self._given_up:
                if not parked.future.done():
                    parked.future.set_result(None)
            return
        first = self._first_due()
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
            return Kind.CALL, {**told, **_timed_out(wait)}
        return Kind.ANSWER, {**told, "result": came["value"], "fits": wait["schema"] is not None}

    @property
    def has_come(self) -> bool:
        """Whether something that is waited for has come in since the run was let go.

        It is in the log, or taken out of the inbox, where nobody who looks for runs to wake would find it.
        """
        inbox = self._host.inbox
        receives = [body for body in self._left if body["wait"] == "receive"]
        children = {body["run"] for body in self._left if body["wait"] == "child"}
        come = any(_waits_for(body, signal) for body in receives for signal in inbox.signals)
        return come or not children.isdisjoint(inbox.ended)

    def close(self) -> None:
        """Nothing more is waited for here; whoever is parked in a thread unwinds."""
        self._host.inbox.changed = lambda: None
        for handle in (self._still, self._clockwork):
            if handle is not None:
                handle.cancel()
        self._still = self._clockwork = None


def _timed_out(body: dict[str, Any]) -> dict[str, Any]:
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
