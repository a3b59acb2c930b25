"""The verbs for `def` bodies: the thread that uses one waits for its result."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload

from holdfast import inside
from holdfast.frames import Frame, Place
from holdfast.inside import NOTHING, CallOptions, call_blocking, frame_in_thread, in_thread

P = ParamSpec("P")
R = TypeVar("R")


class Call(CallOptions):
    """`call(f, ...)` for `def` bodies; see `holdfast.call`. A `def` function runs in the calling thread."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return call_blocking(self.work(fn), args, kwargs)


def ask(
    question: str,
    *,
    data: Any = None,
    schema: Any = None,
    timeout: float | timedelta | None = None,
    default: Any = NOTHING,
    key: str | None = None,
) -> Any:
    """The answer that somebody gives; see `holdfast.ask`."""
    frame = _needed("ask")
    return in_thread(frame, inside.asking(frame, question, data, schema, timeout, default, key))


def receive(
    topic: str, *, timeout: float | timedelta | None = None, default: Any = NOTHING, key: str | None = None
) -> Any:
    """The next message under `topic`; see `holdfast.receive`."""
    frame = _needed("receive")
    return in_thread(frame, inside.receiving(frame, topic, timeout, default, key))


def sleep(until: float | timedelta | datetime, *, key: str | None = None) -> None:
    """Return after so many seconds, a timedelta, or at a datetime; see `holdfast.sleep`."""
    frame = frame_in_thread("sleep")
    if frame is None:
        time.sleep(inside.seconds_left(inside.sleep_body(until)))
    else:
        in_thread(frame, inside.sleeping(frame, until, key))


class Child(Generic[R]):
    """A child run. `result()` waits for what it comes to."""

    def __init__(self, place: Place, id: str) -> None:
        self.id, self._place = id, place
        self._awaited = 0

    def __repr__(self) -> str:
        return f"<child run {self.id}>"

    def result(self) -> R:
        """The child's result, or what it has come to is raised."""
        frame = _needed("spawn")
        self._awaited += 1
        result: R = in_thread(frame, inside.waiting_for_child(self._place, self.id, self._awaited))
        return result


def spawn(flow: Any, input: Any = None, *, id: str | None = None, key: str | None = None) -> Child[Any]:
    """A child run of `flow`, which exists when this returns; see `holdfast.spawn`."""
    frame = _needed("spawn")
    place, child = inside.spawning(frame, flow, input, id, key)
    in_thread(frame, frame.scope.spawn(place, flow, input, child))
    return Child(place, child)


def _needed(verb: str) -> Frame:
    return inside.needed(verb, frame_in_thread(verb))


call = Call()
