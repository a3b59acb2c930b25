"""The connections of one process to one Redis server.

A script is sent once: when its reply is lost, nobody knows whether it was done, and doing it again would be refused as
if somebody else had written. So the driver's own retries are off, and whoever called is told. The next call makes a
new connection. A call that is cancelled closes its connection, so that its late reply is nobody else's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.connection import BlockingConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.errors import StoreDamagedError, StoreUnavailableError
from holdfast.faults import fault
from holdfast.store.redis.address import Address
from holdfast.store.redis.scripts import Script
from holdfast.store.redis.trouble import not_reached, not_tls, told, translated
from holdfast.store.strangers import unless_a_stranger

ANSWER_WITHIN = 10.0  # seconds, well within the default lease
CONNECT_WITHIN = 5.0
_CONNECTIONS = 8
_inherited: list[object] = []  # kept so that a forked child never touches its parent's connections


class Server:
    """Connections are made when they are needed; belongs to one process and, but for `ask_now`, to one event loop."""

    def __init__(self, address: Address) -> None:
        self.address, self.where, self.pid = address, address.shown, os.getpid()
        self.client = redis.asyncio.Redis(
            connection_pool=BlockingConnectionPool.from_url(
                address.url,
                max_connections=_CONNECTIONS,
                timeout=None,
                retry=AsyncRetry(NoBackoff(), 0),
                socket_timeout=None,
                socket_connect_timeout=CONNECT_WITHIN,
                protocol=2,
            )
        )
        self._lock = threading.Lock()
        self._blocking: tuple[float, redis.Redis] | None = None

    async def ask(self, script: Script, *values: str | bytes) -> Any:
        """What the script gives, in one round trip."""
        given = (self.address.prefix, *values)
        fault("redis.before")
        try:
            found = await self._send("EVALSHA", script.digest, 0, *given)
        except redis.exceptions.NoScriptError:
            # The server was restarted, or has never seen it: nothing was done, so it may be sent again.
            found = await self.do("EVAL", script.text, 0, *given)
        except (redis.RedisError, OSError) as error:
            raise told(self.where, error) from error
        fault("redis.after")
        return self.checked(found)

    async def greet(self) -> dict[str, Any]:
        """What the server says of itself. Nothing was asked of it before, so whatever is wrong, nothing has happened.

        Raises StoreUnavailableError that says why it cannot be reached.
        """
        asking = self._send("INFO", "all")
        try:
            if self.address.tls is not None:
                asking = unless_a_stranger(asking, *self.address.tls, lambda answer: not_tls(self.where, answer))
            return dict(await asking)
        except (redis.RedisError, OSError) as error:
            raise not_reached(self.address, error) from error

    async def do(self, *command: str | bytes | float) -> Any:
        """What one plain command gives."""
        with translated(self.where):
            return await self._send(*command)

    async def _send(self, *command: str | bytes | float) -> Any:
        # The driver's own timeout would swallow a cancellation that comes at the wrong moment on Python 3.11.
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await self.client.execute_command(*command)  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            raise redis.TimeoutError(f"no answer within {ANSWER_WITHIN:g} seconds") from error

    def ask_now(self, script: Script, *values: str | bytes, within: float) -> Any:
        """The same on whatever thread calls, which waits; gives up after four times `within` seconds at most."""
        given = (self.address.prefix, *values)
        if not self._lock.acquire(timeout=within):
            raise StoreUnavailableError(f"{self.where} has not answered in time")
        try:
            with translated(self.where):
                client = self._client_for(within)
                try:
                    found = client.evalsha(script.digest, 0, *given)
                except redis.exceptions.NoScriptError:
                    found = client.eval(script.text, 0, *given)
            return self.checked(found)
        finally:
            self._lock.release()

    def _client_for(self, within: float) -> redis.Redis:
        if self._blocking is None or self._blocking[0] != within:
            if self._blocking is not None:
                self._blocking[1].close()
            client = redis.Redis.from_url(
                self.address.url,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=within,
                socket_connect_timeout=within,
                protocol=2,
            )
            self._blocking = (within, client)
        return self._blocking[1]

    def checked(self, found: Any) -> Any:
        """The reply of a script, unless it says that the store itself is damaged."""
        if isinstance(found, list) and len(found) == 2 and found[0] == b"store":
            raise StoreDamagedError(None, None, found[1].decode(errors="replace"))
        return found

    def abandon(self, *users: object) -> None:
        """Leave the connections, and those who use them, to the process that this one was forked from."""
        _inherited.extend((self, *users))

    async def close(self) -> None:
        """Close everything, unless it is another process that uses it."""
        if self.pid != os.getpid():
            self.abandon()
            return
        with self._lock:
            blocking, self._blocking = self._blocking, None
        if blocking is not None:
            blocking[1].close()
        await self.client.aclose(close_connection_pool=True)
