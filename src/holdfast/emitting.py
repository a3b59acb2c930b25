"""The verbs for code inside a run that tell something: emit, progress. Outside of a run they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from holdfast.context import here
from holdfast.errors import UsageError
from holdfast.work import check_name


class Emitted:
    """What `emit` gives: nothing needs to be done with it. Awaiting it waits while too much is unwritten."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        if self._work is not None:
            yield from self._work().__await__()


def emit(name: str, data: Any = None) -> Emitted:
    """Add a chunk to the run's stream: seen live, kept in the log, in order, each once.

    Works in async and `def` bodies alike, and returns at once; chunks are written in batches. A producer that
    may be faster than the disk awaits the result; a thread waits here by itself.
    """
    frame = here()
    if frame is None:
        return Emitted(None)
    return Emitted(frame.scope.emit(frame, check_name("a chunk", name), data))


def progress(fraction: float, text: str | None = None) -> Emitted:
    """Say how far the step is, from 0 to 1, for whoever watches the run; `run.progress` shows it."""
    if type(fraction) not in (int, float) or not 0 <= fraction <= 1:
        raise UsageError(f"progress({fraction!r}): it goes from 0 to 1")
    if text is not None and type(text) is not str:
        raise UsageError(f"progress({fraction!r}, text): it is a text, not {ascii(text)[:80]}")
    return emit("progress", {"fraction": float(fraction), "text": text})
