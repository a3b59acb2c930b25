"""What others want of a run that is live here: cancel, pause, a checkpoint, or to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.engine.inbox import WANTED
from holdfast.model import Mail


class Control:
    """Wishes, as they come in by mail or from the runtime. The runner honours them at its safe points."""

    def __init__(self) -> None:
        self.cancel: Mail | None = None
        self.pause: Mail | None = None
        self.checkpoints: dict[int, Mail] = {}
        self._seen: set[int] = set()
        self.stop = False
        """Hand the run back at the next safe point."""
        self.cut = False
        """Hand it back at once, in the middle of the step."""
        self.wanted = False
        """Whether there is anything to honour."""
        self.notify: Callable[[], None] = lambda: None
        self.others: Callable[[list[Mail]], None] = lambda mail: None
        """Gets the mail that is for the code of the run: messages, answers, children that ended."""

    @property
    def leaves(self) -> bool:
        """Whether the run is to leave this process."""
        return self.stop or self.cancel is not None or self.pause is not None

    def deliver(self, mail: Iterable[Mail]) -> None:
        """Take in mail; what has been seen before changes nothing."""
        before = self.cancel, self.pause, len(self.checkpoints)
        others = []
        for item in mail:
            if item.kind in WANTED:
                others.append(item)
                continue
            self._seen.add(item.id)
            if item.kind == "cancel":
                self.cancel = self.cancel or item
            elif item.kind == "pause":
                self.pause = self.pause or item
            elif item.kind == "checkpoint":
                self.checkpoints[item.id] = item
        if before != (self.cancel, self.pause, len(self.checkpoints)):
            self.wanted = True
            self.notify()
        if others:
            self.others(others)

    def take_checkpoints(self) -> list[Mail]:
        """The mail that asks for a checkpoint, which is honoured by it."""
        asked = list(self.checkpoints.values())
        self.checkpoints.clear()
        self.wanted = self.leaves
        return asked

    def request_stop(self, *, at_once: bool = False) -> None:
        """Hand the run back: at the next safe point, or in the middle of its step."""
        self.stop = self.wanted = True
        self.cut = self.cut or at_once
        self.notify()

    def mail_ids(self) -> tuple[int, ...]:
        """Every piece of mail that has come in: what a run that ends or pauses has taken in."""
        return tuple(sorted(self._seen))

    @property
    def reason(self) -> str | None:
        """Why it is to be cancelled."""
        if self.cancel is None:
            return None
        reason = msgspec.json.decode(self.cancel.body)
        return None if reason is None else str(reason)
