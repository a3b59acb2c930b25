"""What a run waits for, and the command that brings it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.cli.accepted import in_short
from holdfast.cli.explaining import Typed
from holdfast.cli.output import time_of
from holdfast.model import Event, RunStatus
from holdfast.runtime import Runtime

_SHOWN = 3
_QUESTION = 100
_GENERATIONS = 20


class Wait(msgspec.Struct):
    """One thing that a run waits for, and its shape in JSON."""

    run: str
    """The run that waits for it: the one that was looked at, or a child of it."""
    wait: str
    """ask, receive, sleep or child."""
    ask: str | None = None
    question: str | None = None
    schema: Any = None
    topic: str | None = None
    child: str | None = None
    until: datetime | None = None
    """When the wait ends by itself."""
    command: str | None = None
    """What to type; VALUE stands for what only a person can say."""

    def what(self, run: str, *, whole: bool = True) -> str:
        """In words, for whoever looks at that run; a long question is cut unless it is wanted whole."""
        whose = "" if self.run == run else f" for child run {self.run}"
        by = "" if self.until is None else f", until {time_of(self.until)} UTC"
        match self.wait:
            case "ask":
                question = self.question or ""
                if len(question) > _QUESTION and not whole:
                    question = f"{question[: _QUESTION - 1]}…"
                return f"an answer{whose} to {question!r} ({in_short(self.schema)}{by})"
            case "receive":
                return f"a message{whose} on {self.topic!r}{by}"
            case "child":
                return f"child run {self.child}"
            case _:
                return f"its time{whose}, {time_of(self.until)} UTC"


class OpenWaits:
    """Told of every event of a run, it knows what the run waits for."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._open: dict[str, dict[str, Any]] = {}

    def see(self, event: Event) -> None:
        """This happened next."""
        key = event.data.get("key")
        if event.type == "wait" and isinstance(key, str):
            self._open[key] = event.data
        elif event.type in ("call", "received", "answer"):
            self._open.pop(str(key), None)
        elif event.type in ("created", "checkpointed", "rewound"):
            self._open.clear()

    def waits(self, typed: Typed) -> list[Wait]:
        """What is open, in the order in which it was begun."""
        found = [_wait(self._run, body) for body in self._open.values()]
        asks = sum(wait.wait == "ask" for wait in found)
        for wait in found:
            wait.command = _command(wait, typed, alone=asks == 1)
        return found


def _wait(run: str, body: dict[str, Any]) -> Wait:
    until = body.get("until")
    return Wait(
        run=run,
        wait=str(body.get("wait")),
        ask=body.get("ask"),
        question=body.get("question"),
        schema=body.get("schema"),
        topic=body.get("topic"),
        child=body.get("run"),
        until=datetime.fromtimestamp(until, UTC) if isinstance(until, int | float) else None,
    )


def _command(wait: Wait, typed: Typed, *, alone: bool) -> str | None:
    if wait.wait == "ask":
        return typed.line("answer", wait.run, "VALUE", options=() if alone else ("--ask", str(wait.ask)))
    if wait.wait == "receive":
        return typed.line("send", wait.run, str(wait.topic), "VALUE")
    return None


async def waits_of(runtime: Runtime, run: str, typed: Typed) -> list[Wait]:
    """What a run that waits is waiting for; where that is a child that waits too, what the child waits for."""
    opened = OpenWaits(run)
    async for event in runtime.events(run):
        opened.see(event)
    return await with_children(runtime, opened.waits(typed), typed)


async def with_children(runtime: Runtime, waits: Iterable[Wait], typed: Typed) -> list[Wait]:
    """The same waits; that for a child which waits itself is replaced by what the child waits for."""
    found = list(waits)
    for _ in range(_GENERATIONS):  # a chain of parents that a tampered store made a circle of has an end too
        later: list[Wait] = []
        for wait in found:
            child = None if wait.child is None else await runtime.get(wait.child)
            if child is None or child.status != RunStatus.WAITING:
                later.append(wait)
                continue
            opened = OpenWaits(child.id)
            async for event in runtime.events(child.id):
                opened.see(event)
            later += opened.waits(typed) or [wait]
        if later == found:
            break
        found = later
    return found


def told(run: str, waiting_for: str | None, waits: list[Wait], again: str, *, whole: bool) -> str:
    """What is told of a run that waits, the questions cut or whole; `again` is the command that goes on with it."""
    if not waits:
        return f"run {run} waits for {waiting_for or 'something from outside'}. {again} goes on when it has come."
    parts = [wait.what(run, whole=whole) + (f": `{wait.command}`" if wait.command else "") for wait in waits[:_SHOWN]]
    more = f"; and for {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
    then = "Then" if any(wait.command for wait in waits) else "When it has come,"
    return f"run {run} waits for {'; for '.join(parts)}{more}. {then} {again} goes on."
