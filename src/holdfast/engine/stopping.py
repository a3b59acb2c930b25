"""A run that is stopped, for now or for good: pause, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.codec import dumps
from holdfast.core.ids import check_id, storable
from holdfast.core.transitions import Act, act, situation
from holdfast.engine.engine import Engine
from holdfast.engine.observers import show_last
from holdfast.engine.refusals import refused
from holdfast.engine.writer import RunWriter
from holdfast.errors import HoldfastError
from holdfast.model import Head, Kind, Mail, Posted, RunStatus

_LOOK_AGAIN = 1.0
_MARKS = {"pause": (Kind.PAUSED, RunStatus.PAUSED), "cancel": (Kind.CANCELLED, RunStatus.CANCELLED)}


class Stopping:
    """Belongs to one runtime."""

    def __init__(self, engine: Engine, head: Callable[[str], Awaitable[Head]]) -> None:
        """`head` gives that of a run as it is now."""
        self._engine, self._head = engine, head

    async def stop(self, verb: Literal["pause", "cancel"], run: str, reason: str | None = None) -> None:
        """Pause or cancel: at the next safe point where it is live, at once where it is not."""
        check_id(run)
        reason = None if reason is None else storable(reason)
        posted, token = False, 0
        while True:
            head = await self._head(run)
            todo = act(verb, situation(head))
            if todo is Act.NOTHING or (todo is Act.POST and posted):
                return
            if todo is Act.REFUSE:
                raise refused(verb, head)
            if todo is Act.POST:
                posted = await self._engine.store.post_mail(run, Mail(verb, dumps(reason))) is Posted.ACCEPTED
                await self._engine.postman.fetch(run)
                continue  # look again: its owner may have left before the mail came
            if await self._engine.to_its_end(self._apply(verb, run, reason), brings_in=False):
                return
            token = await self._engine.wait_change(run, token, _LOOK_AGAIN)  # somebody else is at it

    async def _apply(self, verb: str, run: str, reason: str | None) -> bool:
        """Change the status of a run that nobody drives; False when it has changed meanwhile."""
        claim = await self._engine.custody.claim_one(run)
        if claim is None:
            return False
        try:
            writer = RunWriter(self._engine.committer, self._engine.clock, claim.head, None)
        except HoldfastError:
            await self._engine.custody.give_back(claim)
            raise
        for mail in claim.mail:
            if mail.kind == "cancel" and verb != "cancel":  # its owner died before it could honour it
                verb, reason = "cancel", _reason(mail)
        if act(verb, situation(replace(claim.head, owned=False))) is not Act.APPLY:
            await self._engine.custody.give_back(claim)
            return False
        kind, status = _MARKS[verb]
        body = {"reason": reason} if verb == "cancel" else {}
        taken = tuple(mail.id for mail in claim.mail if mail.kind in ("pause", "cancel"))
        error = None if reason is None else dumps({"step": None, "error": reason})
        with self._engine.custody.giving_up(writer):
            if verb == "cancel":
                await self._engine.children.cancel(run, reason)
            await writer.write([(kind, body)], status=status, take=taken, attempt=0, error=error)
        show_last(self._engine, writer)
        if verb == "cancel" and claim.head.parent is not None:
            await self._engine.children.ended(run, claim.head.parent)
        return True


def _reason(mail: Mail) -> str | None:
    """Why a run is to be cancelled; a reason that is damaged is none."""
    try:
        reason = msgspec.json.decode(mail.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if reason is None else str(reason)
