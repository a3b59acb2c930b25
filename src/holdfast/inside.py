"""The verbs for code inside a run that give something: call, ask, receive, sleep, spawn.

Each takes its place in the journal the moment it is called, not when it is awaited, and gives a coroutine;
`in_thread` makes the blocking one for `def` bodies of it. Outside of a run `call` is a plain call, `sleep` a
plain sleep, so that functions can be tested by calling them. `emit` and `progress` are in `emitting`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from holdfast.context import Suspended, enter, here, leave, refuse_in_pool
from holdfast.core.answers import schema_tree
from holdfast.core.durations import is_duration, seconds
from holdfast.core.ids import check_id, storable
from holdfast.core.retry import RetryPolicy
from holdfast.errors import UsageError, WrongKindError
from holdfast.faults import fault
from holdfast.frames import Frame, Place
from holdfast.work import OnDoubt, Work, as_work

P = ParamSpec("P")
R = TypeVar("R")

NOTHING: Any = object()


# Where a verb is used


def frame_for(verb: str) -> Frame | None:
    """The frame of async code. Raises WrongKindError in a thread of a `def` body, and None outside of a run."""
    frame = here()
    if frame is None:
        refuse_in_pool(verb)
    elif not on_loop(frame):
        raise WrongKindError(
            f"{verb} is awaited, and this is a def body in a thread. Use holdfast.blocking.{verb} here, or make the "
            f"function async def."
        )
    return frame


def on_loop(frame: Frame) -> bool:
    """Whether the calling code runs on the event loop of its run."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    if loop is not frame.scope.loop:
        raise UsageError(
            "this code runs on an event loop of its own, and its run on another one. Use the verbs in the body itself."
        )
    return True


def in_thread(frame: Frame, work: Coroutine[Any, Any, R], lane: Any = None) -> R:
    """The result of a verb for a `def` body: its thread waits. `lane` is served meanwhile, if there is one.

    Raises Suspended when the run was let go.
    """
    serving = frame.scope.lane() if lane is None else lane
    try:
        result: R = serving.result_of(work, frame.scope.loop)
    except asyncio.CancelledError:
        raise Suspended from None
    return result


# Calls


class CallOptions:
    """What a call is made with."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    def options(
        self,
        *,
        key: str | None = None,
        on_doubt: OnDoubt | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> Self:
        """The same with these options; what is not given stays as the function's own step says."""
        given = {"key": key, "on_doubt": on_doubt, "timeout": timeout, "retry": retry}
        return type(self)(**self._options | {name: value for name, value in given.items() if value is not None})

    def work(self, fn: Callable[..., Any]) -> Work:
        """The function with these options."""
        return with_options(as_work(fn), self._options) if self._options else as_work(fn)


class Call(CallOptions):
    """`call(f, ...)`: the result of `f`, durable before the next line runs and found again after a crash.

    `call.options(...)` gives the same with options: `key` names it in its scope, `on_doubt` says what to do when
    it was cut off by a crash ("retry", "fail", or "ask" a person), `timeout` is in seconds for each attempt,
    `retry` a RetryPolicy.
    """

    @overload
    def __call__(
        self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        return call_async(self.work(fn), args, kwargs)


def with_options(work: Work, options: dict[str, Any]) -> Work:
    """The same function with other options."""
    own = {name: getattr(work, name) for name in ("name", "retry", "timeout", "on_doubt", "executor", "key")}
    return Work(work.fn, **own | options)


def call_async(work: Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
    """A journaled call for async code; a plain one outside of a run."""
    frame = frame_for("call")
    if frame is None:
        return _plainly(work, args, kwargs)
    place = frame.take(work.called, frame.scope.digest((args, kwargs)), work.key)
    return frame.scope.call(place, work, args, kwargs)


def call_blocking(work: Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same for a thread of a `def` body; a `def` function runs in that very thread."""
    frame = frame_in_thread("call")
    if frame is None:
        result = work.fn(*args, **kwargs)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
    place = frame.take(work.called, frame.scope.digest((args, kwargs)), work.key)
    # A thread that waits for a timeout cannot do the work itself. One of the very executor that is asked for does:
    # it might wait for itself otherwise.
    own = work.timeout is None and not work.is_async and work.executor in (None, frame.executor)
    if own and work.retry is None and work.on_doubt == "retry" and (inner := frame.scope.begin_here(place)) is not None:
        return _call_here(inner, place, work, args, kwargs)
    lane = frame.scope.lane() if own else None
    return in_thread(frame, frame.scope.call(place, work, args, kwargs, lane), lane)


def _call_here(inner: Frame, place: Place, work: Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call that the calling thread makes at once; only what came of it goes to the loop."""
    scope, token = place.frame.scope, enter(inner)
    try:
        fault("call.begins")
        outcome = True, work.fn(*args, **kwargs)
    except Suspended:
        scope.given_up_here(inner)
        raise
    except BaseException as error:
        outcome = False, error
    finally:
        leave(token)
    return in_thread(place.frame, scope.conclude(place, work, inner, outcome))


def frame_in_thread(verb: str) -> Frame | None:
    """The frame of a `def` body. Raises WrongKindError on the event loop, which it would stop."""
    frame = here()
    if frame is None:
        refuse_in_pool(verb)
    elif on_loop(frame):
        raise WrongKindError(
            f"holdfast.blocking.{verb} would stop the event loop that this async body runs on. Use `await {verb}(...)` "
            f"of holdfast here."
        )
    return frame


async def _plainly(work: Work, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = work.fn(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[R]) -> R:
    return await result


# Waits


def ask(
    question: str,
    *,
    data: Any = None,
    schema: Any = None,
    timeout: float | timedelta | None = None,
    default: Any = NOTHING,
    key: str | None = None,
) -> Coroutine[Any, Any, Any]:
    """The answer that somebody gives with `rt.answer` or `holdfast answer`; the run needs no process meanwhile.

    `schema` is a type or a JSON Schema that the answer must fit, `data` goes along with the question. After
    `timeout` it is `default`; without a default that raises WaitTimeoutError.
    """
    return asking(needed("ask", frame_for("ask")), question, data, schema, timeout, default, key)


def asking(
    frame: Frame, question: str, data: Any, schema: Any, timeout: Any, default: Any, key: str | None
) -> Coroutine[Any, Any, Any]:
    """What `ask` does in that frame."""
    if type(question) is not str or not question:
        raise UsageError(f"ask(question): it must be a text, not {ascii(question)[:80]}")
    question = storable(question)
    body = {"wait": "ask", "question": question, "data": data, "schema": schema_tree(schema)}
    place = frame.take("ask", frame.scope.digest((question, data)), key)
    return frame.scope.wait(place, {**body, "seconds": _seconds("ask", timeout)}, schema, default)


def receive(
    topic: str, *, timeout: float | timedelta | None = None, default: Any = NOTHING, key: str | None = None
) -> Coroutine[Any, Any, Any]:
    """The next message that was sent to this run under `topic`, before or after this; it needs no process meanwhile.

    Messages come in the order in which they were sent, each once. After `timeout` it is `default`; without a
    default that raises WaitTimeoutError.
    """
    return receiving(needed("receive", frame_for("receive")), topic, timeout, default, key)


def receiving(frame: Frame, topic: str, timeout: Any, default: Any, key: str | None) -> Coroutine[Any, Any, Any]:
    """What `receive` does in that frame."""
    body = {"wait": "receive", "topic": check_topic(topic), "seconds": _seconds("receive", timeout)}
    return frame.scope.wait(frame.take("receive", frame.scope.digest(topic), key), body, None, default)


def check_topic(topic: object) -> str:
    """The topic itself. Raises UsageError for what is no text."""
    if type(topic) is not str or not 0 < len(topic) <= 200 or any("\ud800" <= char <= "\udfff" for char in topic):
        raise UsageError(f"a topic is a text of 1 to 200 characters, not {ascii(topic)[:80]}")
    return topic


def sleep(until: float | timedelta | datetime, *, key: str | None = None) -> Coroutine[Any, Any, None]:
    """Return after so many seconds, a timedelta, or at a datetime; the run needs no process meanwhile.

    It ends once, never early, and also when the time came while nobody was alive.
    """
    frame = frame_for("sleep")
    body = sleep_body(until)
    if frame is None:
        return _sleep_plainly(body)
    return sleeping(frame, until, key)


def sleeping(frame: Frame, until: float | timedelta | datetime, key: str | None) -> Coroutine[Any, Any, None]:
    """What `sleep` does in that frame."""
    body = sleep_body(until)
    return frame.scope.wait(frame.take("sleep", frame.scope.digest(until), key), body, None, NOTHING)


def sleep_body(until: float | timedelta | datetime) -> dict[str, Any]:
    """The wait that a sleep is."""
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise UsageError(f"sleep({until!r}): the datetime needs a time zone, e.g. datetime.now(UTC)")
        return {"wait": "sleep", "until": until.timestamp()}
    return {"wait": "sleep", "seconds": _seconds("sleep", until, "until")}


def seconds_left(body: dict[str, Any]) -> float:
    """How long a plain sleep takes."""
    return max(body["until"] - datetime.now(UTC).timestamp(), 0.0) if "until" in body else float(body["seconds"])


async def _sleep_plainly(body: dict[str, Any]) -> None:
    await asyncio.sleep(seconds_left(body))


def _seconds(verb: str, value: Any, what: str = "timeout") -> float | None:
    if value is None and what == "timeout":
        return None
    duration = seconds(value)
    if not is_duration(duration):
        moment = ", or a datetime" if what == "until" else ""
        raise UsageError(
            f"{verb}({what}={value!r}): seconds or a timedelta, not negative and less than 3,000 years{moment}"
        )
    return float(duration)


def needed(verb: str, frame: Frame | None) -> Frame:
    """The frame itself. Raises UsageError outside of a run."""
    if frame is None:
        raise UsageError(
            f"{verb}(...) works inside a run only: nobody could reach this code otherwise. In a test, run the flow "
            f"with Runtime('memory:')."
        )
    return frame


# Children


class Child(Generic[R]):
    """A child run. Awaiting it gives its result, or raises what it has come to."""

    def __init__(self, place: Place, id: str, starting: asyncio.Future[None]) -> None:
        self.id, self._place, self._starting = id, place, starting
        self._awaited = 0

    def __repr__(self) -> str:
        return f"<child run {self.id}>"

    def __await__(self) -> Generator[Any, None, R]:
        return self._result().__await__()

    async def _result(self) -> R:
        self._awaited += 1
        number, scope = self._awaited, self._place.frame.scope
        if scope.starting is not None:
            scope.starting.discard(self._starting)  # if it fails, that is told here
        await asyncio.shield(self._starting)
        result: R = await waiting_for_child(self._place, self.id, number)
        return result

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the child, for good. Nothing happens when it has ended."""
        await asyncio.shield(self._starting)
        await self._place.frame.scope.cancel_child(self.id, reason)


def spawn(flow: Any, input: Any = None, *, id: str | None = None, key: str | None = None) -> Child[Any]:
    """A child run of `flow`; `await` it for its result. The parent needs no process while it waits.

    It is found again by its id: a parent that runs again joins the child that it has. Left out, the id is made of
    the parent's and the place of this call. Cancelling the parent cancels it. Its failure is raised here, as
    RunFailedError.
    """
    frame = needed("spawn", frame_for("spawn"))
    place, child = spawning(frame, flow, input, id, key)
    return begun(place, flow, input, child)


def begun(place: Place, flow: Any, input: Any, child: str) -> Child[Any]:
    """The child of that id, on its way."""
    frame = place.frame
    starting = asyncio.ensure_future(frame.scope.spawn(place, flow, input, child))
    starting.add_done_callback(lambda f: f.cancelled() or f.exception())  # told to whoever awaits the child
    if frame.scope.starting is None:
        frame.scope.starting = set()
    frame.scope.starting.add(starting)
    return Child(place, child, starting)


def waiting_for_child(place: Place, id: str, number: int) -> Coroutine[Any, Any, Any]:
    """The result of the child that was spawned at that place, awaited for the so-manieth time.

    Each is a wait of its own: a child can be waited for again after a timeout gave one of them up.
    """
    frame = here() or place.frame
    key = place.key if number == 1 else f"{place.key}/await:{number}"
    return frame.scope.wait(Place(frame, key, place.name, place.args), {"wait": "child", "run": id}, None, NOTHING)


def spawning(frame: Frame, flow: Any, input: Any, id: str | None, key: str | None) -> tuple[Place, str]:
    """The place and the id of a child that is spawned in that frame."""
    if not hasattr(flow, "advance") or not hasattr(flow, "next_step"):
        raise UsageError(f"spawn(flow, ...) takes a flow (a Pipeline, or a function marked @flow), not {flow!r}")
    place = frame.take("spawn", frame.scope.digest((flow.name, input)), key if key is not None else id)
    child = frame.scope.child_id(place) if id is None else check_id(id)
    return place, child


call = Call()
