"""A connection outside of the pool, for commits or to listen, which stays known to the event loop.

The driver enters its socket with the loop before each wait and takes it out afterwards: a tenth of the work of a step.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from psycopg import AsyncConnection
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

T = TypeVar("T")

_MOST_UNASKED = 2


class KeptConnection(AsyncConnection):
    """Used by one task at a time, on one event loop."""

    _watched: tuple[asyncio.AbstractEventLoop, int] | None = None
    """The loop and the socket that it looks at: taken out before that is closed, for its number may be used again."""
    _waiter: asyncio.Future[Ready] | None = None
    _unasked = 0
    """How often the socket was ready since somebody waited for it: once is what the last answer leaves behind."""

    async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """What the generator of the driver gives."""
        if timeout is not None:
            self._let_go()
            return await super().wait(gen, interval, timeout)
        try:
            state = next(gen)
            while True:
                state = gen.send(await self._readiness(state))
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException as error:
            self._let_go()
            if not isinstance(error, Exception) and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.pgconn.finish()  # whatever the server makes of it, nobody reads its answer any more
            raise

    async def _readiness(self, state: Wait) -> Ready:
        loop, socket = asyncio.get_running_loop(), self.pgconn.socket
        self._waiter, self._unasked = loop.create_future(), 0
        if self._watched is None:
            loop.add_reader(socket, self._readable)
            self._watched = loop, socket
        if state & Wait.W:
            loop.add_writer(socket, self._answer, Ready.W)
        try:
            return await self._waiter
        finally:
            self._waiter = None
            if state & Wait.W:
                loop.remove_writer(socket)

    def _readable(self) -> None:
        if self._waiter is not None:
            self._answer(Ready.R)
            return
        self._unasked += 1
        if self._unasked >= _MOST_UNASKED:
            self._let_go()  # something that nobody asked for, as a farewell is: whoever comes next reads it

    def _answer(self, ready: Ready) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(ready)

    def _let_go(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None and not watched[0].is_closed():
            watched[0].remove_reader(watched[1])

    async def close(self) -> None:
        """Close it, as the driver does."""
        self._let_go()
        await super().close()
