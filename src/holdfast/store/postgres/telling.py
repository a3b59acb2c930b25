"""Telling others that something changed, and hearing it from them, by NOTIFY and LISTEN.

A notification takes a lock of the whole database for a moment, so it never travels with a commit: it is sent right
after it, and many commits share one. What lets others claim something is told at once. All of it only saves time:
whoever waits looks again after a while anyway.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b

import psycopg
from psycopg import AsyncConnection

from holdfast.errors import StoreError
from holdfast.store.changes import Changes

_EVERY = 0.02  # seconds between two notifications of plain changes
_BACKOFF = (0.1, 5.0)
_PATIENCE = 1.0  # seconds for the last notification
_AGAIN = 0.1

# Nobody needs this on disk: the flush is not waited for.
_NOTIFY = """
    select set_config('synchronous_commit', 'off', true), pg_notify(channel, $1)
    from unnest($2::text[]) channel
"""


class Channels:
    """Both directions, for one store object."""

    def __init__(
        self,
        schema: str,
        connect: Callable[[], Awaitable[AsyncConnection]],
        use: Callable[[Callable[[AsyncConnection], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        """`connect` makes a connection to listen on; `use` lends one to send with."""
        self.any, self.ready = Changes(), Changes()
        self._connect, self._use = connect, use
        mark = blake2b(schema.encode(), digest_size=12).hexdigest()
        self._names = {False: f"holdfast_{mark}_any", True: f"holdfast_{mark}_ready"}
        self._me = uuid.uuid4().hex
        self._due = {False: False, True: False}
        self._hurry = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closing = False

    # Telling

    def tell(self, *, ready: bool = False) -> None:
        """Say that something changed, after it can be read; `ready`: there may be more to claim."""
        self.any.note()
        self._due[False] = True
        if ready:
            self.ready.note()
            self._due[True] = True
            self._hurry.set()
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while any(self._due.values()):
                names = [self._names[ready] for ready, due in self._due.items() if due]
                self._due = {False: False, True: False}
                self._hurry.clear()
                with suppress(StoreError):  # whoever waits looks by itself
                    await self._use(lambda connection: self._notify(connection, names))  # noqa: B023
                if not self._closing:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), _EVERY)
        finally:
            self._sending = None

    async def _notify(self, connection: AsyncConnection, names: list[str]) -> None:
        await connection.execute(_NOTIFY, (self._me, names))

    # Hearing

    async def wait(self, seen: int, timeout: float, *, ready: bool) -> int:
        """Return the count of changes once it is not `seen`, or after `timeout` seconds.

        Others are listened to from the first time that somebody really waits: who is told at once looks for himself.
        """
        changes = self.ready if ready else self.any
        if changes.count == seen and self._listening is None and not self._closing:
            self._listening = asyncio.get_running_loop().create_task(self._listen())
        return await changes.wait(seen, timeout)

    async def _listen(self) -> None:
        delay = _BACKOFF[0]
        while True:
            connection: AsyncConnection | None = None
            try:
                connection = await self._connect()
                for name in self._names.values():
                    await connection.execute(f'listen "{name}"')
                delay = _BACKOFF[0]
                self._wake_all()  # something may have changed before anybody listened
                async for heard in connection.notifies():
                    if heard.payload != self._me:
                        (self.ready if heard.channel == self._names[True] else self.any).note()
            except (psycopg.Error, StoreError):
                pass  # the server is away: try again, and let everybody look by themselves meanwhile
            finally:
                if connection is not None:
                    await connection.close()
            self._wake_all()
            await asyncio.sleep(delay)
            delay = min(delay * 2, _BACKOFF[1])

    def _wake_all(self) -> None:
        self.any.note()
        self.ready.note()

    async def close(self) -> None:
        """Tell what is still to be told, and stop listening."""
        self._closing = True
        self._hurry.set()
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=_PATIENCE)  # others find it by themselves, too
        listening, self._listening = self._listening, None
        while listening is not None and not listening.done():
            # Older drivers, and Python 3.11, lose a cancel that comes just when what is waited for does.
            listening.cancel()
            await asyncio.wait({listening}, timeout=_AGAIN)
