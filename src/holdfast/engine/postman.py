"""Brings live runs what others post for them while a step is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from holdfast.engine.inbox import KINDS
from holdfast.engine.live import LiveRun
from holdfast.engine.trouble import Trouble
from holdfast.model import Query
from holdfast.store.base import Store

POLL = 1.0
PAUSE = 0.03
PAUSE_EACH = 0.0002
QUIET = 0.06


class Postman:
    """Belongs to one engine."""

    def __init__(self, store: Store, live: Mapping[str, LiveRun]) -> None:
        self._store, self._live = store, live
        self.afterwards: Callable[[], Awaitable[None]] | None = None
        """What else is to be done each time round."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def send(self) -> None:
        """Go round from now on; nothing happens when he does already, or was stopped."""
        if self._task is None and not self._stopped:
            self._task = asyncio.ensure_future(self.carry())

    def stop(self) -> None:
        """Go round no more."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def carry(self) -> None:
        """Go round until stopped."""
        loop, seen, patience = asyncio.get_running_loop(), 0, POLL
        trouble = Trouble("the mail could not be read")
        while True:
            try:
                seen = await self._store.wait_change(seen, patience)
                # Commits bring the mail with them: only runs that have not made one for a while are asked for.
                quiet = loop.time() - QUIET
                ids = tuple(run for run, live in self._live.items() if live.runner.writer.heard_at < quiet)
                # What came for one that was busy must not wait for the next change if it is quiet from now on.
                patience = POLL if len(ids) == len(self._live) else QUIET
                query = Query(ids=ids, has_mail=True, mail_kinds=KINDS, limit=max(len(ids), 1))
                for head in await self._store.list_heads(query) if ids else ():
                    await self.fetch(head.id)
                if self.afterwards is not None:
                    await self.afterwards()
                trouble.over()
            except Exception as error:  # as in Worker.work
                trouble.met(error)
                await asyncio.sleep(POLL)
            await asyncio.sleep(PAUSE + PAUSE_EACH * len(self._live))

    async def fetch(self, run: str) -> None:
        """Look into the inbox of a run that is live here."""
        live = self._live.get(run)
        if live is not None and not live.runner.writer.closed:
            live.runner.control.deliver(await live.runner.writer.look())
