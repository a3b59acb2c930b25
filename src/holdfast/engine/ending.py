"""Whether the event loop is ending."""

from __future__ import annotations

import asyncio


class Ending:
    """asyncio cancels every task when a loop ends, so also this one, which nobody else knows.

    It tells the cancel of a run's task that ends the process from one that the code of a step has asked for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sentinel = loop.create_task(_for_ever(loop))

    @property
    def begun(self) -> bool:
        """Whether the tasks are being cancelled. All are told before the first of them hears of it."""
        return self._sentinel.done() or self._sentinel.cancelling() > 0

    def begin(self) -> None:
        """The tasks are about to be cancelled."""
        self._sentinel.cancel()

    async def over(self) -> None:
        """Leave nothing behind on a loop that goes on."""
        self.begin()
        await asyncio.wait({self._sentinel})


async def _for_ever(loop: asyncio.AbstractEventLoop) -> None:
    await loop.create_future()
