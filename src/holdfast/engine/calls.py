"""One journaled call: found in the journal, decided when in doubt, or made, and durable before it returns.

    look it up → (intent) → the function runs → its result is committed → the next line

Dying before the commit makes the call again with the same idempotency key, unless there was an intent: then
it is in doubt, and `on_doubt` decides. Dying after it never does.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.answers import answer_value
from holdfast.core.codec import Tree, dumps
from holdfast.core.failures import describe, failure_of, failure_tree
from holdfast.core.ids import storable
from holdfast.core.journal import Record
from holdfast.core.retry import RetryPolicy
from holdfast.engine.chunks import supersede
from holdfast.engine.hands import StepRaised, finished, within
from holdfast.engine.notes import told_of
from holdfast.engine.uncut import uncut
from holdfast.errors import (
    CallFailedError,
    CallInDoubtError,
    HoldfastError,
    NotLoadableError,
    StepTimeoutError,
    UnknownTargetError,
)
from holdfast.faults import fault
from holdfast.flows.moves import Keeping
from holdfast.frames import Frame, Place
from holdfast.model import Kind
from holdfast.work import Work

if TYPE_CHECKING:
    from holdfast.engine.scope import StepScope

_ONCE = RetryPolicy()
_MUCH = 1000
_DOUBT_SCHEMA = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "result": {}},
    "required": ["done"],
    "additionalProperties": False,
}


def _same(value: Any) -> Any:
    return value


class Calling:
    """A call on its way through one attempt."""

    def __init__(
        self,
        scope: StepScope,
        place: Place,
        work: Work,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        lane: Any = None,
        whole_step: bool = False,
        retries: bool = True,
    ) -> None:
        self._scope, self._host, self._place, self._work = scope, scope.host, place, work
        self._args, self._kwargs, self._lane = args, kwargs, lane
        self._frame = place.frame
        self._failures = 0
        self._whole_step = whole_step
        self._retry, self._timeout = work.retry or _ONCE, work.timeout
        if not retries:  # the runner tries it again, and watches over its time
            self._retry, self._timeout = _ONCE, None
        self._pack: Callable[[Any], Any] = _same
        self._unpack: Callable[[Any], Any] = _same
        self.made: tuple[Frame, bool, Any] | None = None
        """The frame of a call that the calling thread has made already, and what came of it."""
        self._otherwise: Any = None
        """What a result that a person gives is meant as, if not as what the function says it returns."""

    def keep(self, keeping: Keeping, state: Any) -> None:
        """It gives what a step gives that has this state."""
        self._pack, self._unpack = (lambda value: keeping.pack(value, state)), keeping.unpack
        self._otherwise = None if state is None else type(state)

    async def result(self) -> Any:
        """What the function returns or raises, now or when it was called before."""
        self._host.declare(self._work.returns)
        if self.made is not None:
            self._host.journal.find(self._place.key)
            return await self._make()
        key, record = self._host.journal.locate(self._place.key, self._place.args)
        if key != self._place.key:
            self._place = replace(self._place, key=key)
        if record is not None:
            self._compare(record)
            if record.in_doubt and record.ended is None:
                done, value = await self._decide(record)
                if done:
                    return value
            elif record.ended == "result":
                return self._unpack(await self._stored(record.body["result"]))
            elif record.ended == "error":
                raise self._failure(record)
            elif record.ended == "abandoned":
                await self._scope.waiting().stand_still(self._place)
        await self._scope.hold(self._place)
        return await self._make()

    async def _stored(self, tree: Tree) -> Any:
        """What it gave before, built again."""
        try:
            return self._host.codec.decode(tree, path=self._path)
        except NotLoadableError as error:
            if self._whole_step:
                # No code of the user's asked for it, and none is to undo what was done well.
                self._host.unfit(error)
                await asyncio.sleep(0)  # it ends here
            raise

    @property
    def _path(self) -> str:
        return f"result of {self._place.name}"

    def _failure(self, record: Record) -> Exception:
        return failure_of(record.body["error"], self._host.codec, self._host.failures, call=self._place.name)

    def _compare(self, record: Record) -> None:
        """What happened is not done twice; that it was asked for with other arguments is told."""
        before, now = record.body.get("args"), self._place.args
        if before is not None and now is not None and before != now:
            self._host.tell_changed(self._place.key, self._place.name, before, now)

    # In doubt

    async def _decide(self, record: Record) -> tuple[bool, Any]:
        """(True, its result) when it is known to have been done; (False, ...) when it is to be made."""
        name, key = self._place.name, self._context().idempotency_key
        if self._work.on_doubt == "retry":
            return False, None
        if self._work.on_doubt == "fail":
            raise CallInDoubtError(self._host.writer.run, name, key)
        question = (
            f"Was the call {name!r} done? It was cut off while it was under way. Answer "
            f'{{"done": true, "result": ...}} with its result, or {{"done": false}} to have it made again.'
        )
        data = {"call": name, "arguments": self._arguments(), "key": self._place.key, "idempotency_key": key}
        for again in count():
            key = f"{self._place.key}/?{record.seq}" + (f".{again}" if again else "")
            body = {"wait": "ask", "question": question, "data": data, "schema": _DOUBT_SCHEMA, "seconds": None}
            answer = await self._scope.waiting().wait(Place(self._place.frame, key, "ask", None), body, None, None)
            if not answer["done"]:
                break
            try:
                packed = self._pack(_as_declared((self._work.returns, self._otherwise), answer.get("result")))
            except UnknownTargetError as error:
                question = f"{error} {question}"  # what leads nowhere is not kept, whoever says it
                continue
            await self._write({"result": self._host.codec.encode(packed, path=self._path)})
            return True, self._unpack(packed)
        return False, None

    def _arguments(self) -> Any:
        """What the call is made with, for whoever is to say whether it was done; shortened when it is much."""
        try:
            given: Any = dict(inspect.signature(self._work.fn).bind(*self._args, **self._kwargs).arguments)
        except (TypeError, ValueError):
            given = [*self._args, *self._kwargs.items()]
        try:
            if len(dumps(self._host.codec.encode(given, path="arguments"))) <= _MUCH:
                return given
        except HoldfastError:
            pass  # it holds what cannot be stored
        return storable(f"{given!r:.{_MUCH}}")

    # Making it

    async def _make(self) -> Any:
        scope, place, started = self._scope, self._place, self._host.clock.now()
        self._failures = self._host.journal.tried(self._path_inside)
        frame = self._frame = self._begin()
        begun = not frame.firm
        try:
            if frame.firm:
                fault("call.before_intent")
                await self._write({"on_doubt": self._work.on_doubt}, kind=Kind.INTENT)
                begun = True
            value, outcome = await self._tried()
            self._supersede()
            await self._write({"started": started, **outcome})
        except asyncio.CancelledError:
            self._frame.close()
            if not scope.closed and not place.frame.over:
                # Given up by the code around it, not by us: that is what it saw, and what it sees again.
                await uncut(self._abandon(started, doubt=frame.firm and begun))
            raise
        finally:
            scope.ended(self._frame)
        if isinstance(value, StepRaised):
            raise _told(value.error, place.name)
        return value

    def _begin(self) -> Frame:
        """The frame of an attempt, which is under way from now on."""
        place = self._place
        if self.made is not None:
            self._scope.began(self.made[0])
            self._scope.here.remove(self.made[0])
            return self.made[0]
        frame = place.frame.inside(self._path_inside, self._named)
        frame.firm, frame.tried = self._work.on_doubt != "retry", self._failures
        self._scope.began(frame)
        return frame

    async def _begin_again(self) -> None:
        """The attempt has failed. The next one finds what it had finished, and makes what failed in it again."""
        frame, journal = self._frame, self._host.journal
        self._frame = self._begin()
        self._scope.ended(frame)
        if journal.left_below(self._path_inside) or not self._host.notes.idle:
            await self._host.notes.settle()  # chunks are superseded by their seqs
        journal.new_attempt(self._path_inside)

    def _supersede(self) -> None:
        """Mark the chunks of an attempt that was cut off or failed, and that the one that ended did not emit."""
        chunks = self._host.journal.left_below(self._path_inside)
        if chunks:
            supersede(self._host, chunks)
            self._host.journal.add(Kind.SUPERSEDED, 0, {"seqs": chunks})

    async def _tried(self) -> tuple[Any, dict[str, Any]]:
        """The value, or what was raised, and what to write of it."""
        host = self._host
        while True:
            try:
                value = await self._once(self._frame)
                # Its effect is out in the world but not recorded: dying from here on makes it again. Keep nothing
                # between the function and the commit that can fail or wait.
                fault("call.done")
                kept = self._pack(value)
                return self._unpack(kept), {"result": host.codec.encode(kept, path=self._path)}
            except asyncio.CancelledError as cancelled:
                if _asked_for(self._scope):
                    raise
                error: BaseException = cancelled  # raised by the function itself
            except StepRaised as raised:
                error = raised.error
            except HoldfastError as raised:  # its timeout, or a result that cannot be stored
                error = raised
            self._frame.close()
            self._failures += 1
            doubt = self._frame.firm and isinstance(error, StepTimeoutError)
            if doubt or not self._retry.retries(error, self._failures):
                outcome: dict[str, Any] = {"error": failure_tree(error, host.codec, host.failures)}
                return StepRaised(error), outcome | ({"doubt": True} if doubt else {})
            host.show("call_failed", error=describe(error), data={"name": self._place.name, "attempt": self._failures})
            await host.clock.sleep(self._retry.delay(self._failures, random.random))
            await self._begin_again()

    async def _once(self, frame: Frame) -> Any:
        host, work = self._host, self._work
        if self.made is not None:
            (_, fine, value), self.made = self.made, None
            return await finished(value, frame, fine=fine)
        fault("call.begins")
        doing = host.hands.do_call(work, self._args, self._kwargs, frame, self._lane)
        if self._timeout is None:
            return await doing
        deadline = host.clock.now() + self._timeout
        frame.deadline = deadline if frame.deadline is None else min(frame.deadline, deadline)
        return await within(self._timeout, self._place.name, host.writer.run, doing, frame.close)

    def _context(self) -> Any:
        return self._host.context(self._place.frame.inside(None, self._named))

    @property
    def _path_inside(self) -> str:
        """Where the verbs of its function are found. Those of a step lie there whether it is journaled or not."""
        return (self._place.frame.path if self._whole_step else None) or f"{self._place.key}/"

    @property
    def _named(self) -> str | None:
        """The call that its idempotency key is of. A step has its own, whatever it says of being in doubt."""
        return None if self._whole_step else self._place.key

    async def _abandon(self, started: float, *, doubt: bool) -> None:
        await self._write({"started": started, "abandoned": True, **({"doubt": True} if doubt else {})})

    async def _write(self, outcome: dict[str, Any], kind: Kind = Kind.CALL) -> None:
        host = self._host
        body = {**told_of(self._place, host.writer), **outcome, **({"step": True} if self._whole_step else {})}
        if self._scope.starting or self._scope.unspawned:
            await self._scope.started(self._frame)  # a call that is found again does not spawn its children again
        # What is written counts, also when the wait for it was given up, as by the timeout of the step.
        await host.notes.write(kind, body, then=lambda seq: host.journal.add(kind, seq, body))


def _asked_for(scope: StepScope) -> bool:
    """Whether the calling task is being cancelled from outside, or the attempt is over."""
    task = asyncio.current_task()
    return scope.closed or (task is not None and task.cancelling() > 0)


def _told(error: BaseException, call: str) -> BaseException:
    """What the calling code gets: nothing that would end its task or loop."""
    if isinstance(error, Exception):
        return error
    told = CallFailedError(call, type(error).__name__, describe(error))
    told.__cause__ = error
    return told


def _as_declared(declared: tuple[Any, ...], value: Any) -> Any:
    """A result that a person gave as JSON, as the first of these types that it fits."""
    for annotation in declared:
        if annotation is not None:
            with contextlib.suppress(HoldfastError):
                return answer_value(annotation, value)
    return value
