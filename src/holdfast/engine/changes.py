"""Waiting for the store to change, until this runtime shuts down."""

from __future__ import annotations

import asyncio

from holdfast.errors import RunInterruptedError
from holdfast.store.base import Store


class Changes:
    """Belongs to one event loop and one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waits: set[asyncio.Task[int]] = set()
        self._stopped = False

    async def wait(self, run: str, seen: int, timeout: float) -> int:
        """What the store's `wait_change` gives to whoever follows the run.

        Raises RunInterruptedError when this runtime shuts down: whoever has the run goes on with it.
        """
        if self._stopped:
            raise RunInterruptedError(run)
        wait = asyncio.ensure_future(self._store.wait_change(seen, timeout))
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)
        try:
            return await wait
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the caller was cancelled, not the wait
            raise RunInterruptedError(run) from None

    def stop(self) -> None:
        """Nobody may still be looking when the store is closed."""
        self._stopped = True
        for wait in self._waits:
            wait.cancel()
