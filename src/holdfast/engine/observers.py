"""Whoever watches the events of a runtime. What the watcher does wrong is not a run's fault."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.context import enter, leave
from holdfast.core.events import events_of
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.writer import RunWriter
from holdfast.model import Event

log = logging.getLogger("holdfast")


class Observers:
    """The one function that a runtime was given as `on_event`, or nobody."""

    def __init__(self, on_event: Callable[[Event], Any] | None) -> None:
        self._on_event = on_event
        self._under_way: set[asyncio.Task[Any]] = set()

    def emit(self, event: Event) -> None:
        """Show an event to whoever watches."""
        if self._on_event is not None:
            self.tell(self._on_event, event)

    def tell(self, watcher: Callable[[Event], Any], event: Event) -> None:
        """Show an event to this one, who may be a function that is awaited."""
        token = enter(None)  # what the watcher does is not done by the code that the event is of
        try:
            result = watcher(event)
            if inspect.isawaitable(result):
                task = asyncio.ensure_future(_awaited(result, event))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
        # A SystemExit that leaves the task which drives the run would end the loop, and with it every other run.
        except BaseException as error:
            _complain(event, error)
        finally:
            leave(token)

    async def settle(self, seconds: float) -> None:
        """Give what they still do so much time."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)


def show_last(around: Surroundings, writer: RunWriter) -> None:
    """Show what was written last of a run that nobody drives."""
    if around.observed:
        for event in events_of(writer.run, writer.written[-1]):
            around.emit(event)


async def _awaited(result: Awaitable[Any], event: Event) -> None:
    try:
        await result
    except (asyncio.CancelledError, GeneratorExit):
        raise  # it is given up, and did nothing wrong
    except BaseException as error:
        _complain(event, error)


def _complain(event: Event, error: BaseException) -> None:
    try:
        log.error("holdfast: on_event raised for %s of run %s", event.type, event.run, exc_info=error)
    except BaseException:
        pass  # a broken handler of the log is not the run's fault either, and nobody is left to be told
