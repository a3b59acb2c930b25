"""The one way into the store for what owners write: commits of all busy runs go together.

A commit waits one turn of the loop, and all that are ready by then are one batch, so one flush
serves many. A single one is written on the loop's own thread where the store can do that, which
saves two changes of thread; everything else goes to the store's own writer, and what arrives
meanwhile collects into the next batch. Where only one run is live there is nobody to wait for.
A batch is bounded by number and by bytes: servers take only so much at once, and would refuse all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.engine.introducing import Introducing
from holdfast.model import Commit, Entry, Reply

_TURN = 0.005
_MOST_BYTES = 32 * 1024 * 1024
_Waiters = list["asyncio.Future[Reply]"]


class Committer:
    """Belongs to one event loop."""

    def __init__(self, store: Introducing, busy: Callable[[], int]) -> None:
        self._store, self._busy = store, busy
        self.loop = asyncio.get_running_loop()
        self._pending: list[Commit] = []
        self._waiters: _Waiters = []
        """Who waits for each of the pending ones, in the same order."""
        self._scheduled = False
        self._turn_at = 0.0
        self.heard_at = 0.0
        """When the store last replied, on the loop's clock."""
        self._writing: asyncio.Task[None] | None = None
        self._most = store.most_together

    def commit(self, commit: Commit) -> Awaitable[Reply]:
        """What the store replies. Cancelling the wait does not take the commit back."""
        pending, alone = self._pending, False
        if not pending and self._writing is None:
            alone, known = self._busy() <= 1, self._store.knows_owner
            # The first of all goes by itself, whoever is behind: those need not wait then until the owner is known.
            if alone or not known:
                replies = self._store.commit_now(commit)
                if replies is not None:
                    return self._in_turn(replies[0])
            alone = alone and known  # when not, what comes before it takes longer than a turn, and others may follow
        future: asyncio.Future[Reply] = self.loop.create_future()
        pending.append(commit)
        self._waiters.append(future)
        if self._writing is None:
            if alone or len(pending) >= self._most:
                self._begin()
            elif not self._scheduled:
                self._schedule()
        return future

    def _schedule(self) -> None:
        self._scheduled = True
        self.loop.call_soon(self._flush)

    async def _in_turn(self, reply: Reply) -> Reply:
        """The reply; steps that never really wait must not keep the rest of the loop from its turn."""
        self.heard_at = now = self.loop.time()
        if now > self._turn_at:
            self._turn_at = now + _TURN
            await asyncio.sleep(0)
        return reply

    def _flush(self) -> None:
        self._scheduled = False
        if not self._pending or self._writing is not None:
            return
        if len(self._pending) == 1:
            try:
                replies = self._store.commit_now(self._pending[0])
            except Exception as error:
                _fail(self._taken()[1], error)
                return
            if replies is not None:
                self._deliver(self._taken()[1], replies)
                return
        self._begin()

    def _begin(self) -> None:
        batch, waiters = self._taken()
        try:
            writing = self._store.commit(batch)  # which may begin before it is awaited
        except Exception as error:
            _fail(waiters, error)
            if self._pending and not self._scheduled:
                self._schedule()
        else:
            self._writing = self.loop.create_task(self._write(writing, waiters))

    def _taken(self) -> tuple[list[Commit], _Waiters]:
        """What goes together now, with who waits for it."""
        most = _together(self._pending, self._most)
        batch, self._pending = self._pending[:most], self._pending[most:]
        waiters, self._waiters = self._waiters[:most], self._waiters[most:]
        return batch, waiters

    async def _write(self, writing: Awaitable[list[Reply]], waiters: _Waiters) -> None:
        error, replies = None, list[Reply]()
        try:
            replies = await writing
        except Exception as caught:
            error = caught
        except BaseException:
            self._writing = None  # the loop is ending: nothing more is begun on it
            raise
        # The next batch is on its way before those go on who waited for this one.
        self._writing = None
        self._flush()
        if error is None:
            self._deliver(waiters, replies)
        else:
            _fail(waiters, error)

    def _deliver(self, waiters: _Waiters, replies: list[Reply]) -> None:
        self.heard_at = self.loop.time()
        for future, reply in zip(waiters, replies, strict=True):
            if not future.done():
                future.set_result(reply)

    async def read_back(self, run: str, after: int) -> list[Entry]:
        """What stands in the log of a run behind that seq, for whoever does not know what became of a commit."""
        return await self._store.read_entries(run, after=after)

    async def is_there(self, run: str) -> bool:
        """Whether the store has the run, for whoever is told that it is not theirs."""
        return (await self._store.read_heads((run,)))[0] is not None

    async def drain(self) -> None:
        """Return when nothing is under way any more."""
        while self._pending or self._writing is not None:
            if self._writing is not None:
                await asyncio.wait({self._writing})
            else:
                await asyncio.sleep(0)


def _together(pending: list[Commit], most: int) -> int:
    """How many of these go in one batch: at most so many, and no more bytes than any store takes, but always one."""
    left = _MOST_BYTES
    for count, commit in enumerate(pending[:most]):
        for entry in commit.entries:
            left -= len(entry.body)
        if commit.rebase is not None:
            left -= len(commit.rebase.body)
        if left < 0:
            return max(count, 1)
    return most


def _fail(waiters: _Waiters, error: Exception) -> None:
    for future in waiters:
        if not future.done():
            future.set_exception(error)
            # Whoever waits gets it; when nobody does any more, it must not be reported as forgotten.
            future.exception()
