"""Hears from the server that something changed. Whoever waits looks again after a while anyway: this saves time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import redis
import redis.asyncio

from holdfast.store.changes import Changes

_AT_MOST = 5.0  # seconds until whoever waits goes on without hearing
_AGAIN = (0.05, 2.0)  # seconds until the next try to listen: at first, and after a while


class Listener:
    """Belongs to one event loop. Subscribes when somebody first waits."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._client, self._prefix = client, prefix
        self._counts = {"any": Changes(), "ready": Changes()}
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: tuple[str, ...] = ()
        self._tried = asyncio.Event()

    async def wait(self, seen: int, timeout: float, channel: str) -> int:
        """Return the count of that channel when it is not `seen` any more, or after `timeout` seconds."""
        if channel not in self._channels:
            self._channels = (*self._channels, channel)
            self._cancel()
            self._tasks.append(asyncio.ensure_future(self._listen()))
        # What changes from now on must be heard before the caller looks, if it can be heard at all.
        with suppress(TimeoutError):
            async with asyncio.timeout(_AT_MOST):
                await self._tried.wait()
        return await self._counts[channel].wait(seen, timeout)

    async def _listen(self) -> None:
        pause = _AGAIN[0]
        while True:
            try:
                async with self._client.pubsub() as heard:
                    await heard.subscribe(*(f"{self._prefix}:{channel}" for channel in self._channels))
                    waiting = set(self._channels)
                    while True:
                        message = await heard.get_message(timeout=None)
                        if message is None:
                            continue
                        channel = message["channel"].decode().rpartition(":")[2]
                        waiting.discard(channel)
                        self._counts[channel].note()  # also at first: something may have been missed before
                        if not waiting:
                            pause = _AGAIN[0]
                            self._tried.set()
            except (redis.RedisError, OSError):
                self._tried.set()
            for channel in self._channels:
                self._counts[channel].note()  # whoever waits looks for itself as long as nothing can be heard
            await asyncio.sleep(pause)
            pause = min(pause * 2, _AGAIN[1])

    def _cancel(self) -> None:
        self._tried.clear()
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Hear nothing any more."""
        self._cancel()
        tasks, self._tasks, self._channels = self._tasks, [], ()
        if tasks:
            await asyncio.wait(tasks)
