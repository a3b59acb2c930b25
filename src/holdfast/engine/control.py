"""What others want of a run that is live here: cancel, pause, a checkpoint, or to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from holdfast.core.transitions import ENDED
from holdfast.engine.inbox import KINDS, WANTED
from holdfast.model import Mail, RunStatus


class Told(Protocol):
    """Who is told what came in."""

    def notified(self) -> None:
        """Something is wanted of the run."""
        ...

    def deliver(self, mail: list[Mail]) -> None:
        """There is mail for the code of the run: messages, answers, children that ended."""
        ...


class _Nobody:
    """Who is told once the run has left."""

    def notified(self) -> None:
        """Nothing can be done about it any more."""

    def deliver(self, mail: list[Mail]) -> None:
        """It stays in the store, for whoever goes on with the run."""


_NOBODY = _Nobody()

_KEPT = {RunStatus.PAUSED: ("cancel",), RunStatus.WAITING: ("cancel", "pause", "checkpoint")}
"""By how a run leaves that is not to be gone on with at once: the wishes that this does not fulfil."""


class Control(msgspec.Struct, eq=False):
    """Wishes, as they come in by mail or from the runtime. The runner honours them at its safe points."""

    _told: Told
    cancel: Mail | None = None
    pause: Mail | None = None
    stop: bool = False
    """Hand the run back at the next safe point."""
    cut: bool = False
    """Hand it back at once, in the middle of the step."""
    wanted: bool = False
    """Whether there is anything to honour."""
    heard: int = 0
    """The last mail that has come in."""
    _checkpoints: dict[int, Mail] | None = None
    _seen: dict[int, str] | None = None
    """What has come in by mail, by its id: of what kind it is."""
    _wake: asyncio.Future[None] | None = None

    @property
    def leaves(self) -> bool:
        """Whether the run is to leave this process."""
        return self.stop or self.cancel is not None or self.pause is not None

    def deliver(self, mail: Iterable[Mail]) -> None:
        """Take in mail; what has been seen before changes nothing."""
        others = self.hear(mail)
        if others:
            self._told.deliver(others)

    def hear(self, mail: Iterable[Mail]) -> list[Mail]:
        """Take in what is wanted of the run; the rest of the mail, which is for its code."""
        before = self.cancel, self.pause, len(self._checkpoints or ())
        others = []
        for item in mail:
            self.heard = max(self.heard, item.id)
            if item.kind in WANTED:
                others.append(item)
                continue
            if item.kind not in KINDS:
                continue
            self._seen = self._seen or {}
            self._seen[item.id] = item.kind
            if item.kind == "cancel":
                self.cancel = self.cancel or item
            elif item.kind == "pause":
                self.pause = self.pause or item
            elif item.kind == "checkpoint":
                self._checkpoints = {**(self._checkpoints or {}), item.id: item}
        if before != (self.cancel, self.pause, len(self._checkpoints or ())):
            self._want()
        return others

    def take_checkpoints(self) -> list[Mail]:
        """The mail that asks for a checkpoint, which is honoured by it."""
        asked = list((self._checkpoints or {}).values())
        self._checkpoints = None
        self.wanted = self.leaves
        return asked

    def request_stop(self, *, at_once: bool = False) -> None:
        """Hand the run back: at the next safe point, or in the middle of its step."""
        self.stop, self.cut = True, self.cut or at_once
        self._want()

    def _want(self) -> None:
        self.wanted = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        self._told.notified()

    async def wait(self, other: asyncio.Future[Any]) -> None:
        """Wait for the other, or until something is wanted of the run."""
        if self.wanted:
            return
        self._wake = waking = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({other, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

    def part(self) -> None:
        """The run has left: whatever comes in now is not for it."""
        self._told = _NOBODY

    def settled_by(self, status: RunStatus) -> tuple[int, ...]:
        """The mail that is done with when the run leaves so; whoever goes on with it must see the rest."""
        if not self._seen or not (status in ENDED or status in _KEPT):
            return ()
        kept = _KEPT.get(status, ())
        return tuple(sorted(id for id, kind in self._seen.items() if kind not in kept))

    @property
    def reason(self) -> str | None:
        """Why it is to be cancelled."""
        if self.cancel is None:
            return None
        reason = msgspec.json.decode(self.cancel.body)
        return None if reason is None else str(reason)
