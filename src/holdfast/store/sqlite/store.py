"""The Store contract on one SQLite file."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw

from holdfast.clock import Clock, SystemClock
from holdfast.errors import StoreError, UsageError
from holdfast.model import Claim, Commit, Entry, Head, Mail, Owner, Posted, Query, Reply
from holdfast.store.base import Store
from holdfast.store.owners import LocalOwners
from holdfast.store.sqlite import sql
from holdfast.store.sqlite.batches import Batch, make_ready
from holdfast.store.sqlite.claiming import claimable, claimed
from holdfast.store.sqlite.connections import Connections, translated
from holdfast.store.sqlite.pages import Room
from holdfast.store.sqlite.writing import finish, write_batch

T = TypeVar("T")

Durability = Literal["power", "process"]
_SYNCHRONOUS = {"power": "full", "process": "normal"}
_POLL = (0.002, 0.05)  # how often to look for changes by others: at first, and after a while
_EVERYTHING = 0xFFFFFFFF
_FORGET_AFTER = 3600.0
_MANY, _ENTERS_WITHIN = 32, 0.003


class SqliteStore(Store):
    """Runs in one SQLite file that several processes, threads and runtimes may use at once.

    `durability="power"` (synchronous=FULL): what is committed survives power loss.
    `durability="process"` (synchronous=NORMAL): it survives the process, but a power cut or a crash of
    the system may take back the last commits; the file stays sound.
    """

    capabilities = frozenset({"durable", "shared", "inline"})
    most_together = sql.MOST_STEPS

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Durability = "power",
        vfs: str | None = None,
    ) -> None:
        if durability not in _SYNCHRONOUS:
            raise UsageError(f"durability is 'power' or 'process', not {durability!r}")
        self.path = Path(os.path.abspath(path))
        self._clock = clock or SystemClock()
        self._durability, self._vfs = durability, vfs
        self._owners = LocalOwners(Path(f"{self.path}-owners"))
        self._opened: Connections | None = None
        self._beating: set[str] = set()

    # Opening and closing

    async def open(self) -> None:
        # In a thread: another process may hold the file while it brings the schema up to date.
        await asyncio.get_running_loop().run_in_executor(None, self._open)

    def _open(self) -> Connections:
        opened = self._opened
        if opened is None or opened.pid != os.getpid():
            if opened is not None:
                opened.close()
            opened = self._opened = Connections(self.path, synchronous=_SYNCHRONOUS[self._durability], vfs=self._vfs)
        return opened

    def _db(self) -> Connections:
        opened = self._opened
        if opened is None:
            # Not opened again by whoever comes late: nobody would close it any more.
            raise StoreError(f"the store at {self.path} is not open")
        return opened if opened.pid == os.getpid() else self._open()

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            for owner in self._beating:
                self._owners.drop(owner)
            self._beating.clear()
            await asyncio.get_running_loop().run_in_executor(None, opened.close)

    # Writing

    async def _write(self, work: Callable[[apsw.Connection], T]) -> T:
        db = self._db()
        return await asyncio.get_running_loop().run_in_executor(db.writers, db.write, work)

    def commit(self, batch: Sequence[Commit]) -> Coroutine[Any, Any, list[Reply]]:
        """As the contract says. On the event loop the writer begins at once, not when the reply is awaited."""
        return self._written(batch, self._begin(batch) if _on_a_loop() else None)

    async def _written(self, batch: Sequence[Commit], begun: asyncio.Future[list[Reply]] | None) -> list[Reply]:
        return await (begun or self._begin(batch))

    def _begin(self, batch: Sequence[Commit]) -> asyncio.Future[list[Reply]]:
        db, entered = self._db(), threading.Lock()
        ready = make_ready(batch, db.room)

        def work(connection: apsw.Connection) -> list[Reply]:
            return write_batch(connection, db.room, ready, entered.release)

        entered.acquire()
        writing = asyncio.get_running_loop().run_in_executor(db.writers, db.write, work)
        if len(batch) >= _MANY:
            # Two threads that both have work to do in Python get in each other's way, and for milliseconds each time.
            # So let the writer come to where SQLite works by itself, and then go on beside it.
            entered.acquire(timeout=_ENTERS_WITHIN)
        return writing

    def try_commit(self, batch: Sequence[Commit], introducing: tuple[Owner, float] | None = None) -> list[Reply] | None:
        db = self._db()
        if introducing is None:
            return db.write_now(_write_now, db.room, batch)
        owner, lease = introducing
        db.look_after_file()  # before anything is written, as for a beat: from then on a lost one is refused

        def introduce(connection: apsw.Connection) -> None:
            self._hold(owner.id)
            self._beat(connection, owner, lease)

        return db.write_now(write_batch, db.room, Batch(batch), last=introduce)

    async def claim_runs(self, query: Query, owner: str) -> list[Claim]:
        def work(connection: apsw.Connection) -> list[Claim]:
            connection.execute("begin immediate")
            live = self._live(connection)
            numbers = claimable(connection, query, live, owner)
            if not numbers:
                connection.execute("rollback")
                return []
            claims = claimed(connection, numbers, live, owner)
            finish(connection)
            return claims

        return await self._write(work)

    async def post_mail(self, run: str, mail: Mail) -> Posted:
        def work(connection: apsw.Connection) -> Posted:
            connection.execute("begin immediate")
            n = connection.execute(sql.FIND_RUN, (run,)).get
            if n is None:
                connection.execute("rollback")
                return Posted.NO_RUN
            connection.execute(sql.POST_MAIL, (n, mail.kind, mail.body.decode(), mail.key, self._clock.now()))
            if connection.changes() == 0:
                connection.execute("rollback")
                return Posted.DUPLICATE
            finish(connection)
            return Posted.ACCEPTED

        return await self._write(work)

    async def delete_run(self, run: str) -> bool:
        def work(connection: apsw.Connection) -> bool:
            connection.execute("begin immediate")
            row = connection.execute(sql.FIND_OWNER, (run,)).fetchone()
            if row is None or (row[1] is not None and sql.text(row[1]) in self._live(connection)):
                connection.execute("rollback")
                return False
            connection.execute(sql.DROP_ENTRIES, (row[0],))
            connection.execute("delete from inbox where n = ?", (row[0],))
            connection.execute("delete from runs where n = ?", (row[0],))
            finish(connection)
            return True

        return await self._write(work)

    # Owners

    def beat(self, owner: Owner, lease: float) -> None:
        db = self._db()
        db.look_after_file()
        self._hold(owner.id)

        def work(connection: apsw.Connection) -> None:
            connection.execute("begin immediate")
            self._beat(connection, owner, lease)
            finish(connection)

        db.write(work)

    def _hold(self, owner: str) -> None:
        self._owners.hold(owner)
        self._beating.add(owner)

    def _beat(self, connection: apsw.Connection, owner: Owner, lease: float) -> None:
        now = self._clock.now()  # when others let it write: the lease begins then
        connection.execute(sql.BEAT, (owner.id, owner.name, now, now + lease, owner.info.decode()))
        # Owners that died long ago and own nothing leave no trace.
        connection.execute(sql.FORGET_OWNERS, (now - _FORGET_AFTER,))

    async def retire_owner(self, owner: str) -> None:
        db = self._db()

        def work(connection: apsw.Connection) -> None:
            connection.execute("begin immediate")
            connection.execute("delete from owners where id = ?", (owner,))
            finish(connection)

        def last() -> None:
            db.look_after_file()  # whoever lives for less than a heartbeat is told too
            db.write(work)

        await asyncio.get_running_loop().run_in_executor(db.writers, last)
        self._owners.drop(owner)
        self._beating.discard(owner)

    def _live(self, connection: apsw.Connection) -> set[str]:
        rows = connection.execute(sql.LIVE_OWNERS, (self._clock.now(),))
        return {owner for owner in map(sql.text, (row[0] for row in rows)) if not self._owners.dead(owner)}

    async def list_owners(self) -> list[Owner]:
        def work(connection: apsw.Connection) -> list[Owner]:
            live = self._live(connection)
            rows = connection.execute(sql.READ_OWNERS)
            return [
                Owner(owner, sql.text(name), owner in live, beat_at, info)
                for owner, name, beat_at, info in ((sql.text(row[0]), *row[1:]) for row in rows)
            ]

        return await self._read(work)

    # Reading

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        db = self._db()

        def in_one_snapshot() -> T:
            with translated(self.path):
                connection = db.reader()
                # One deferred transaction, so that all of it is seen at one moment.
                connection.execute("begin")
                try:
                    return work(connection)
                finally:
                    connection.execute("rollback")

        return await asyncio.get_running_loop().run_in_executor(db.readers, in_one_snapshot)

    async def read_heads(self, ids: Sequence[str]) -> list[Head | None]:
        found = {head.id: head for head in await self.list_heads(Query(ids=tuple(ids), limit=len(ids)))}
        return [found.get(run) for run in ids]

    async def list_heads(self, query: Query) -> list[Head]:
        def work(connection: apsw.Connection) -> list[Head]:
            live = self._live(connection)
            return [sql.head_from(row, live) for row in connection.execute(*sql.select_heads(query, live))]

        return await self._read(work)

    async def read_entries(
        self, run: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        def work(connection: apsw.Connection) -> list[Entry]:
            n = connection.execute(sql.FIND_RUN, (run,)).get
            return [] if n is None else _entries(connection, n, after, upto, limit)

        return await self._read(work)

    async def wait_change(self, seen: int, timeout: float, *, ready: bool = False) -> int:
        # `data_version` moves with every commit of any process; reading it takes a few microseconds.
        deadline, pause = asyncio.get_running_loop().time() + timeout, _POLL[0]
        while (now := self._db().data_version()) == seen:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _POLL[1])
        return now

    async def inspect(self) -> list[tuple[str | None, str]]:
        def work(connection: apsw.Connection) -> list[tuple[str | None, str]]:
            problems: list[tuple[str | None, str]] = [
                (None, str(row[0])) for row in connection.execute("pragma integrity_check") if row[0] != "ok"
            ]
            problems += [(sql.text(run), "the run has no log") for (run,) in connection.execute(sql.WITHOUT_LOG)]
            stray = connection.execute(sql.COUNT_STRAY).get
            return problems + ([(None, f"{stray} entries belong to no run")] if stray else [])

        return await self._read(work)


def _write_now(connection: apsw.Connection, room: Room, batch: Sequence[Commit]) -> list[Reply]:
    return write_batch(connection, room, make_ready(batch, room))


def _on_a_loop() -> bool:
    try:
        return asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


def _entries(
    connection: apsw.Connection, n: int, after: int, upto: int | None = None, limit: int | None = None
) -> list[Entry]:
    last = _EVERYTHING if upto is None else min(upto, _EVERYTHING)
    values = (n, min(after, _EVERYTHING), last, -1 if limit is None else limit)
    return [sql.entry_from(row) for row in connection.execute(sql.READ_ENTRIES, values)]
