"""How many runs are driven at once, and who is next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.free = limit
        """How many more runs may be driven right now."""
        self.freed: Callable[[], object] = lambda: None
        """Is told when a turn is free that nobody here waits for."""
        self._queue: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a turn; False when there is none right now, or others wait for it."""
        if self.free <= 0:
            return False
        self.free -= 1
        return True

    def queue(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """What is done when one's turn has come; cancelled, it is out of the queue."""
        turn: asyncio.Future[None] = loop.create_future()
        self._queue.append(turn)
        return turn

    def give_back(self) -> None:
        """Let the next one have the turn."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1
        self.freed()
