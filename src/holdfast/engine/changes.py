"""Waiting for the store to change, until this runtime shuts down.

Everybody here who waits shares one look at the store. So all see a change at the same moment, and the heads that they
then ask for are read together; a thousand who follow runs cost the store no more than one.
"""

from __future__ import annotations

import asyncio

from holdfast.errors import RunInterruptedError
from holdfast.store.base import Store

_LOOK_AGAIN = 10.0


class Changes:
    """Belongs to one event loop and one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen = 0
        self._waiting: set[asyncio.Future[int]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False

    async def wait(self, run: str, seen: int, timeout: float) -> int:
        """What the store's `wait_change` gives to whoever follows the run.

        Raises RunInterruptedError when this runtime shuts down: whoever has the run goes on with it.
        """
        if self._stopped:
            raise RunInterruptedError(run)
        if self._looking is not None and self._seen not in (seen, 0):
            return self._seen  # the others have seen something since
        waiting: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        if self._looking is None:
            self._seen = seen  # whatever came since is seen at once, also by those who join
            self._looking = asyncio.ensure_future(self._look())
        try:
            await asyncio.wait({waiting}, timeout=timeout)
        finally:
            self._waiting.discard(waiting)
            if not self._waiting:
                self._end_looking()
        if waiting.cancelled():
            raise RunInterruptedError(run)
        return waiting.result() if waiting.done() else seen

    async def _look(self) -> None:
        try:
            while self._waiting:
                now = await self._store.wait_change(self._seen, _LOOK_AGAIN)
                if now != self._seen:
                    self._seen = now
                    self._tell(now)
        except Exception as error:
            self._tell(error)
        finally:
            if self._looking is asyncio.current_task():
                self._looking = None

    def _tell(self, what: int | Exception) -> None:
        waiting, self._waiting = self._waiting, set()
        for one in waiting:
            if one.done():
                continue
            if isinstance(what, Exception):
                one.set_exception(what)
                one.exception()  # whoever waits has it; when nobody does any more, it is not reported as forgotten
            else:
                one.set_result(what)

    def _end_looking(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()

    def stop(self) -> None:
        """Nobody may still be looking when the store is closed."""
        self._stopped = True
        self._end_looking()
        for one in self._waiting:
            one.cancel()
