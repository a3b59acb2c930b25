"""Where a new run goes: driven here at once, or into a queue for whoever has room."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core.durations import is_duration, seconds
from holdfast.errors import UsageError

_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST = 1 << 15


class Placing(msgspec.Struct, frozen=True, gc=False):
    """The queue of a run and its place there; `delay` None means that it is driven here at once."""

    queue: str = "default"
    priority: int = 0
    key: str | None = None
    delay: float | None = None


HERE = Placing()


def placing(queue: Any, priority: Any, delay: Any, key: Any) -> Placing:
    """The place that was asked for; HERE when nothing was. Raises UsageError."""
    if queue is None and priority is None and delay is None and key is None:
        return HERE
    waits = 0.0 if delay is None else seconds(delay)
    if not is_duration(waits):
        raise UsageError(f"delay={delay!r}: seconds or a timedelta, not negative and less than 3,000 years")
    if priority is not None and (type(priority) is not int or not -_MOST <= priority < _MOST):
        raise UsageError(f"priority={priority!r}: a whole number from {-_MOST} to {_MOST - 1}; higher goes first")
    if key is not None and (type(key) is not str or not 0 < len(key) <= 200 or not _is_storable(key)):
        raise UsageError(f"key={ascii(key)[:80]}: a text of 1 to 200 characters, without NUL and lone surrogates")
    return Placing("default" if queue is None else check_queue(queue), priority or 0, key, float(waits))


def check_queue(name: object) -> str:
    """The name itself. Raises UsageError for what cannot be the name of a queue."""
    if type(name) is not str or not _QUEUE.fullmatch(name):
        raise UsageError(
            f"{ascii(name)[:80]} is not the name of a queue: up to 128 letters, digits, dots, dashes and underscores, "
            f"the first a letter or digit"
        )
    return name


def check_queues(names: Iterable[str] | None) -> tuple[str, ...] | None:
    """The queues that are served, each once; None for all. Raises UsageError."""
    if names is None:
        return None
    if isinstance(names, str):
        raise UsageError(f"queues={names!r}: give a list of names, as [{names!r}]")
    found = tuple(dict.fromkeys(check_queue(name) for name in names))
    if not found:
        raise UsageError("queues=[]: name at least one queue, or leave it out to serve all of them")
    return found


def check_worker_name(name: object) -> str:
    """The name itself. Raises UsageError for what is no short line of text."""
    if type(name) is not str or not 0 < len(name) <= 100 or not name.isprintable():
        raise UsageError(f"name={ascii(name)[:80]}: a line of 1 to 100 characters")
    return name


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
