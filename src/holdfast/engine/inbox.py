"""What others sent to a live run and its code has not taken yet: messages, answers, children that ended.

A message is moved into the log as it comes in and stays pending until a `receive` takes it. An answer stays
in the inbox until its question takes it, so that both happen in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.clock import Clock
from holdfast.core.codec import loads
from holdfast.core.history import Signal
from holdfast.engine.notes import Notes
from holdfast.errors import HoldfastError, StoreDamagedError
from holdfast.model import Kind, Mail


class _Message(msgspec.Struct):
    topic: str
    data: msgspec.Raw


class _OfQuestion(msgspec.Struct):
    ask: str


class _OfChild(msgspec.Struct):
    run: str


WANTED = {"send": _Message, "answer": _OfQuestion, "timeout": _OfQuestion, "child": _OfChild}
"""By kind, what is for the code of a run: what its body has to hold."""
KINDS = (*WANTED, "cancel", "pause", "checkpoint")
"""What this version understands. Mail of another kind is for a newer one: it stays where it is and wakes nobody."""


def check_mail(run: str, mail: Iterable[Mail]) -> None:
    """Raises StoreDamagedError for mail that cannot be read."""
    try:
        for item in mail:
            if item.kind in KINDS:
                msgspec.json.decode(item.body, type=WANTED.get(item.kind, Any))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreDamagedError(run, None, f"its mail cannot be read: {error}") from error


class Inbox:
    """Belongs to one live run."""

    def __init__(self, run: str, notes: Notes, pending: Iterable[Signal], clock: Clock) -> None:
        self._run, self._notes, self._clock = run, notes, clock
        self.signals = list(pending)
        """The messages that nobody has received yet, in order."""
        self.coming: list[str] = []
        """The topics of messages that are on their way into the log."""
        self.answers: dict[str, tuple[Mail, Any]] = {}
        """By question: the mail that answers it, or that says that its time has run out."""
        self.ended: set[str] = set()
        """The children that have ended since whoever waits was last told."""
        self._seen: dict[int, str | None] = {}
        self.changed: Callable[[], None] = lambda: None

    def deliver(self, mail: Iterable[Mail]) -> None:
        """Take in mail; what has been seen before changes nothing. Raises StoreDamagedError, and then takes in none."""
        new = [item for item in mail if item.kind in WANTED and item.id not in self._seen]
        check_mail(self._run, new)
        for item in sorted(new, key=lambda one: one.id):
            body: Any = loads(item.body)
            self._seen[item.id] = None
            if item.kind == "send":
                self._take_in(item, body)
            elif item.kind in ("answer", "timeout"):
                self._seen[item.id] = body["ask"]
                self.answers.setdefault(body["ask"], (item, body))
            else:
                self.ended.add(body["run"])
                self._notes.put(None, take=(item.id,))
        if new:
            self.changed()

    def _take_in(self, item: Mail, body: dict[str, Any]) -> None:
        self.coming.append(body["topic"])

        def written(seq: int | HoldfastError) -> None:
            self.coming.remove(body["topic"])
            if isinstance(seq, int):
                self.signals.append(Signal(seq, body["topic"], body["data"], sent_at))
                self.changed()

        sent_at = min(item.at, self._clock.now())  # the clock of who sent it may be ahead
        note = {"topic": body["topic"], "data": body["data"], "at": sent_at}
        self._notes.put(Kind.SIGNAL, note, take=(item.id,), written=written)

    def put_back(self, signal: Signal) -> None:
        """Whoever was given the message did not wait any longer: it is the next one of its topic again."""
        self.signals.append(signal)
        self.signals.sort(key=lambda one: one.seq)
        body = {"topic": signal.topic, "data": signal.data, "at": signal.at, "again": signal.seq}
        self._notes.put(Kind.SIGNAL, body, written=lambda seq: self.changed())

    def unread(self, asks: Iterable[str]) -> dict[int, str]:
        """The answers that none of these questions waits for: the ids of their mail, and what they answer."""
        waiting = set(asks)
        return {mail: ask for mail, ask in self._seen.items() if ask is not None and ask not in waiting}
