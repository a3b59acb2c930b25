"""The connections of one process to one database, and who may use which.

One connection is kept for commits, so that a step waits for nobody. Everything else takes one from a small pool, and
goes on when whoever waits for it is cancelled: the driver would cancel it on the server, and its end would be in doubt
for nothing. The engine's committer sees to that for commits.

A connection that the server has closed meanwhile is noticed before anything is sent on it, and replaced. What was
sent and not answered is never sent again, unless it only reads.

A forked child never touches what it inherited: both would talk to the server on one connection.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from holdfast.errors import StoreError
from holdfast.store.postgres import arrays
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.kept import KeptConnection
from holdfast.store.postgres.trouble import not_reached, stranger, translated
from holdfast.store.postgres.writing import prepare
from holdfast.store.strangers import unless_a_stranger

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

POOL_SIZE = 4
_WAIT_FOR_CONNECTION = 10.0  # seconds
_WAIT_TO_BE_READY = 1.0
_REST = 0.1
_WAIT_FOR_THE_END = 10.0
_inherited: list[object] = []  # kept so that a forked child never closes its parent's connections

_SESSION = """
    select set_config('search_path', $1, false),
        set_config('synchronous_commit', case when $2 then 'off' when told = 'off' then 'on' else told end, false),
        set_config('idle_in_transaction_session_timeout', '10s', false), set_config('jit', 'off', false),
        set_config('plan_cache_mode', 'force_custom_plan', false),
        set_config('default_transaction_isolation', 'read committed', false)
    from current_setting('synchronous_commit') told
"""
# Every statement of a commit looks rows up by their key. The plan is made once, for tables that may still be empty:
# say beforehand that they will not stay so.
_LOOKUPS_ONLY = """
    select set_config(name, 'off', false)
    from unnest(array['enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_bitmapscan']) name
    union all select set_config('plan_cache_mode', 'force_generic_plan', false)
"""


class _Patient(AsyncConnection):
    """Connects as soon as the server can be reached. The pool would rest between its tries, twice as long each time."""

    @classmethod
    async def connect(  # type: ignore[override]
        cls, conninfo: str = "", *, goes_on: Callable[[], bool], **given: Any
    ) -> Self:
        deadline = time.monotonic() + _WAIT_FOR_CONNECTION
        while True:
            try:
                return await super().connect(conninfo, **given)
            except psycopg.OperationalError:
                if not goes_on() or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_REST)


class Connections:
    """Belongs to the process and the event loop that made it.

    With `relaxed` the server acknowledges what its disk does not have yet; without, never, whatever its default is.
    """

    def __init__(self, address: Address, *, relaxed: bool) -> None:
        self.address, self.pid = address, os.getpid()
        self._relaxed, self._known = relaxed, False
        self._writer: AsyncConnection | None = None
        self._writing = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._pool: AsyncConnectionPool[AsyncConnection] = AsyncConnectionPool(
            address.conninfo,
            connection_class=_Patient,
            kwargs={"autocommit": True, "cursor_factory": AsyncRawCursor, "goes_on": lambda: not self._closing},
            configure=self._configure,
            min_size=0,
            max_size=POOL_SIZE,
            timeout=_WAIT_FOR_CONNECTION,
            reconnect_timeout=_WAIT_FOR_CONNECTION,
            num_workers=1,
            open=False,
            name="holdfast",
        )

    async def open(self) -> None:
        """Make the pool ready. It connects when somebody asks."""
        await self._pool.open()

    async def be_ready(self, writer: AsyncConnection, look: Work[object]) -> None:
        """Connect before somebody asks: `writer` is kept for commits, and on one of the pool `look` is done."""
        connecting = self._begin(self._use_pool(look, again=False))
        try:
            with suppress(StoreError):  # who may only read can do so; the first commit is told what is missing
                self._writer = await self._for_commits(writer)
            await asyncio.wait({connecting}, timeout=_WAIT_TO_BE_READY)
        finally:
            connecting.cancel()  # whoever needs it waits longer, and is told what is wrong

    async def _for_commits(self, connection: AsyncConnection) -> AsyncConnection:
        try:
            with translated(self.address):
                await connection.execute(_LOOKUPS_ONLY, prepare=False)
                await prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def connect(self) -> AsyncConnection:
        """A new connection outside of the pool. Raises StoreUnavailableError that says why there is none."""
        try:
            connection = await self._reach()
        except psycopg.Error as error:
            raise not_reached(error, self.address) from error
        self._known = True
        try:
            with translated(self.address):
                await self._configure(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _reach(self) -> AsyncConnection:
        address, reached = self.address, list[AsyncConnection]()

        async def reaching() -> AsyncConnection:
            reached.append(
                await KeptConnection.connect(address.conninfo, autocommit=True, cursor_factory=AsyncRawCursor)
            )
            return reached[0]

        # A server that was PostgreSQL before is not asked what it is: it has troubles enough when it is silent.
        if self._known or address.only_host is None:
            return await reaching()
        try:
            return await unless_a_stranger(reaching(), *address.only_host, lambda answer: stranger(answer, address))
        except BaseException:
            for connection in reached:  # just when nobody waited for it any more
                await connection.close()
            raise

    async def _configure(self, connection: AsyncConnection) -> None:
        arrays.register(connection.adapters)
        await connection.execute(_SESSION, (self.address.quoted_schema, self._relaxed), prepare=False)

    async def write(self, work: Work[T]) -> T:
        """What `work` gives, on the connection for commits. Whoever is cancelled meanwhile leaves its end in doubt."""
        async with self._writing:
            connection = self._writer
            if connection is None or is_lost(connection):
                if connection is not None:
                    await connection.close()
                self._writer = None
                connection = self._writer = await self._for_commits(await self.connect())
            with translated(self.address):
                return await work(connection)

    async def read(self, work: Work[T]) -> T:
        """What `work` gives on a connection of the pool; it only reads, so it is done again if that is lost."""
        return await self._to_its_end(self._use_pool(work, again=True))

    async def do(self, work: Work[T]) -> T:
        """The same for what writes: when the connection is lost, nobody knows whether it was done."""
        return await self._to_its_end(self._use_pool(work, again=False))

    async def _use_pool(self, work: Work[T], *, again: bool) -> T:
        connection: AsyncConnection | None = None
        with translated(self.address):
            try:
                async with self._borrowed() as connection:
                    return await work(connection)
            except psycopg.OperationalError:
                if not again or connection is None or not connection.broken:
                    raise
            async with self._borrowed() as connection:
                return await work(connection)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[AsyncConnection]:
        try:
            connection = await self._living()
        except PoolTimeout:
            # Somebody else's fault, or all are in use: connecting once more tells which.
            await (await self.connect()).close()
            raise
        try:
            yield connection
        finally:
            await self._pool.putconn(connection)

    async def _living(self) -> AsyncConnection:
        """One of the pool that the server has not closed meanwhile, as it closes all of them when it is restarted.

        The pool could look itself, but rests after each that it finds closed, for a second, two, four.
        """
        for _ in range(POOL_SIZE):
            connection = await self._pool.getconn()
            if not is_lost(connection):
                return connection
            await connection.close()
            await self._pool.putconn(connection)  # which makes another one in its place
        return await self._pool.getconn()

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; when nobody does any more, it is not reported as forgotten

    async def close(self) -> None:
        """Close everything, when what is under way has ended, or the server does not answer any more."""
        if self.pid != os.getpid():
            _inherited.append(self)
            return
        if self._under_way:
            _, hanging = await asyncio.wait(self._under_way, timeout=_WAIT_FOR_THE_END)
            for task in hanging:
                task.cancel()
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        self._closing = True
        await self._pool.close()


def is_lost(connection: AsyncConnection) -> bool:
    """Whether the server has closed this connection, on which nothing is under way, or is about to."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if not poll.poll(0):
        return False
    # Either a farewell or some notice that nobody asked for: reading it tells which.
    with suppress(psycopg.Error):
        connection.pgconn.consume_input()
        connection.pgconn.is_busy()
        return connection.closed or bool(poll.poll(0))
    return True
