"""What others say to a run: messages, answers; and what it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.answers import fit_answer
from holdfast.core.codec import Codec, dumps
from holdfast.core.events import when
from holdfast.core.history import read_body
from holdfast.core.ids import check_id
from holdfast.core.journal import Journal, Record
from holdfast.core.transitions import ENDED, Act, act, situation
from holdfast.engine.engine import Engine
from holdfast.engine.inbox import KINDS
from holdfast.engine.reader import Reader
from holdfast.engine.refusals import refused
from holdfast.errors import (
    AnsweredError,
    NoQuestionError,
    NotLoadableError,
    RunNotFoundError,
    StoreDamagedError,
    StoreError,
    VerbRefusedError,
)
from holdfast.inside import check_topic
from holdfast.model import RESULT_KINDS, Ask, Entry, Head, Mail, Posted, Query, RunStatus

_ASKING = tuple((status, None) for status in RunStatus if status not in ENDED)
_PAGE = 500


class Mailing:
    """Belongs to one runtime."""

    def __init__(self, engine: Engine, reader: Reader) -> None:
        self._engine, self._reader = engine, reader

    async def send(self, run: str, topic: str, data: Any) -> None:
        """Put a message into the run's inbox; durable when this returns."""
        check_topic(topic)
        head = await self._permitted("send", run)
        tree = self._codec(head).encode(data, path="data")
        await self._post(run, Mail("send", dumps({"topic": topic, "data": tree})))

    async def answer(self, run: str, value: Any, ask: str | None) -> str:
        """Answer the question, or the only one that is open; the id of the question."""
        try:
            head = await self._permitted("answer", run)
        except VerbRefusedError:
            if ask is not None and await self._was_settled(run, ask):
                raise AnsweredError(run, ask) from None
            raise
        open_asks = {record.body["ask"]: record for record in await self._open_asks(head)}
        meant = [one for one, record in open_asks.items() if not self._is_over(head, record)] or list(open_asks)
        if ask is None and len(meant) == 1:
            ask = meant[0]
        if ask is None or ask not in open_asks:
            if ask is not None and await self._was_settled(run, ask):
                raise AnsweredError(run, ask)
            raise NoQuestionError(run, ask, list(open_asks))
        if self._is_over(head, open_asks[ask]):
            # At the door, as its run does it: nobody may have been there at that moment.
            await self._post(run, Mail("timeout", dumps({"ask": ask}), key=f"answer-{ask}"))
            raise AnsweredError(run, ask)
        value = fit_answer(open_asks[ask].body["schema"], value)
        tree = self._codec(head).encode(value, path="answer")
        mail = Mail("answer", dumps({"ask": ask, "value": tree}), key=f"answer-{ask}")
        if await self._post(run, mail) is Posted.DUPLICATE:
            raise AnsweredError(run, ask)
        return ask

    async def asks(self, run: str | None, *, raw: bool = False) -> AsyncIterator[Ask]:
        """The open questions of one run, or of all; `raw` leaves their data as the JSON that is stored."""
        if run is not None:
            head = await self._reader.head(check_id(run))
            if head is None:
                raise RunNotFoundError(run)
            unread = await self._with_mail([head])
            for record in await self._open_asks(head):
                if not self._is_over(head, record):
                    yield self._ask(head, record, raw=raw, unread=bool(unread))
            return
        query = Query(states=_ASKING, limit=_PAGE)
        while heads := await self._engine.store.list_heads(query):
            asking = [head for head in heads if head.waiting_for is not None]
            unread = await self._with_mail(asking)
            for head in asking:
                try:
                    found = await self._open_asks(head)
                except (StoreDamagedError, RunNotFoundError):
                    continue  # damage is told by `doctor`; the questions of the others are shown
                for record in found:
                    if not self._is_over(head, record):
                        yield self._ask(head, record, raw=raw, unread=head.id in unread)
            query = replace(query, after=(heads[-1].created_at, heads[-1].id))

    async def children_ended(self, head: Head) -> bool:
        """Whether a child that the run waits for has ended. One that its code did not come to would not be missed."""
        journal = _journal(head, await self._reader.segment(head))
        waits = [r for r in journal.open_waits() if r.key not in journal.let_go_with.get("unasked", ())]
        children = [record.body["run"] for record in waits if record.body["wait"] == "child"]
        found = await self._engine.store.read_heads(children) if children else []
        return any(child is None or child.status in ENDED for child in found)

    async def wants_its_child(self, head: Head) -> bool:
        """Whether the run is to be taken up for a child. Where one of the two is damaged it is: that tells of it."""
        try:
            return await self.children_ended(head)
        except StoreDamagedError:
            return True
        except RunNotFoundError:
            return False

    def _is_over(self, head: Head, record: Record) -> bool:
        """Whether the time of a question has run out, though its run may not know yet; if it is live, that one says."""
        until = record.body["until"]
        return until is not None and not head.owned and until <= self._engine.clock.now()

    async def _with_mail(self, heads: list[Head]) -> set[str]:
        """Those of these runs that have mail which they have not taken in."""
        ids = tuple(head.id for head in heads)
        query = Query(ids=ids, has_mail=True, mail_kinds=KINDS, limit=max(len(ids), 1))
        return {head.id for head in await self._engine.store.list_heads(query)} if ids else set()

    def _ask(self, head: Head, record: Record, *, raw: bool, unread: bool) -> Ask:
        body = record.body
        return Ask(
            id=body["ask"],
            run=head.id,
            flow=head.flow,
            question=body["question"],
            data=body["data"] if raw else self._data(head, body["data"]),
            schema=body["schema"],
            asked_at=when(body["at"]),
            expires_at=None if body["until"] is None else when(body["until"]),
            unread=unread,
        )

    def _data(self, head: Head, tree: Any) -> Any:
        """What goes along with a question; where its types are not known, the plain data that is stored."""
        try:
            return self._codec(head).decode(tree, path="data")
        except NotLoadableError:
            return msgspec.to_builtins(tree)

    async def _open_asks(self, head: Head) -> list[Record]:
        if head.status in ENDED:
            return []
        journal = _journal(head, await self._reader.segment(head))
        return [record for record in journal.open_waits() if record.body["wait"] == "ask"]

    async def _was_settled(self, run: str, ask: str) -> bool:
        """Whether the question was once asked and is not open any more, as far as the log is kept."""
        async for entry in self._reader.log(run):
            if entry.kind in RESULT_KINDS and read_body(run, entry).get("ask") == ask:
                return True
        return False

    def _codec(self, head: Head) -> Codec:
        return self._engine.registry.codec(head.flow)

    async def _permitted(self, verb: str, run: str) -> Head:
        head = await self._reader.head(check_id(run))
        if head is None:
            raise RunNotFoundError(run)
        if act(verb, situation(head)) is Act.REFUSE:
            raise refused(verb, head)
        return head

    async def _post(self, run: str, mail: Mail) -> Posted:
        posted = await self._engine.store.post_mail(run, mail)
        if posted is Posted.NO_RUN:
            raise RunNotFoundError(run)
        try:
            await self._engine.postman.fetch(run)
        except StoreError:
            pass  # it is in the inbox, and that is what was asked for: the run sees it when the store is back
        return posted


def _journal(head: Head, entries: list[Entry]) -> Journal:
    return Journal.of(head.id, entries) or Journal()
