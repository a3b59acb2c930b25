"""Hears from the server that something changed. Whoever waits looks again after a while anyway: this saves time."""

from __future__ import annotations

import asyncio

import redis
import redis.asyncio

from holdfast.store.changes import Changes

_AGAIN = (0.05, 2.0)  # seconds until the next try to listen: at first, and after a while
_LOOK = 0.5  # seconds after which to look when nothing can be heard


class Listener:
    """Belongs to one event loop. Subscribes when somebody first waits."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._client, self._prefix = client, prefix
        self._counts = {"any": Changes(), "ready": Changes()}
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: tuple[str, ...] = ()
        self._tried = asyncio.Event()
        self.hears = False
        """Whether changes are heard of right now."""

    async def wait(self, seen: int, timeout: float, channel: str) -> int:
        """Return the count of that channel when it is not `seen` any more, or after `timeout` seconds."""
        if channel not in self._channels:
            self._channels = (*self._channels, channel)
            self._cancel()
            self._tasks.append(asyncio.ensure_future(self._listen()))
        # What changes from now on must be heard before the caller looks.
        await self._tried.wait()
        changes = self._counts[channel]
        if seen == changes.count and not self.hears:
            await asyncio.sleep(min(timeout, _LOOK))
            changes.note()
        return await changes.wait(seen, timeout)

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
                            self.hears, pause = True, _AGAIN[0]
                            self._tried.set()
            except (redis.RedisError, OSError):
                self.hears = False
                self._tried.set()
            for channel in self._channels:
                self._counts[channel].note()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _AGAIN[1])

    def _cancel(self) -> None:
        self.hears = False
        self._tried.clear()
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Hear nothing any more."""
        self._cancel()
        tasks, self._tasks, self._channels = self._tasks, [], ()
        if tasks:
            await asyncio.wait(tasks)
