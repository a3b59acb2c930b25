"""The physical limit: a bare journal on the standard library's sqlite3, no framework.

    python raw.py WORKLOAD VARIANT FOLDER

`inline` commits each step on the event loop's thread; `loopgroup` commits together what became ready in
one turn of the loop. With `-grown` the WAL has been written through once before the clock starts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import time
from collections.abc import Awaitable
from typing import Any

import workloads as w

INSERT = "insert into steps values ((?1 << 20) | ?2, ?3)"
NEW = "insert into runs values (?, ?, 0)"
FINISH = "update runs set status = 1 where id = ?"
dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
Op = tuple[str, tuple[Any, ...]]
blocked = 0


def open_database(folder: str, *, grown: bool) -> sqlite3.Connection:
    c = sqlite3.connect(os.path.join(folder, "raw.db"), isolation_level=None)
    c.execute("pragma journal_mode=wal")
    c.execute("pragma synchronous=full")
    c.execute("create table if not exists runs (id integer primary key, n int, status int)")
    c.execute("create index if not exists runs_open on runs (id) where status = 0")
    c.execute("create table if not exists steps (id integer primary key, data text)")
    if grown:
        c.execute("pragma cache_size = -100")
        c.execute("begin immediate")
        c.execute("insert into steps values (0, zeroblob(4000000))")
        c.execute("rollback")
        c.execute("pragma cache_size = -2000")
    return c


class Inline:
    def __init__(self, folder: str, *, grown: bool) -> None:
        self.c = open_database(folder, grown=grown)

    async def write(self, *ops: Op) -> None:
        if len(ops) == 1:
            self.c.execute(*ops[0])
            return
        self.c.execute("begin immediate")
        for op in ops:
            self.c.execute(*op)
        self.c.execute("commit")


class LoopGroup:
    def __init__(self, folder: str, *, grown: bool) -> None:
        self.c = open_database(folder, grown=grown)
        self.loop = asyncio.get_running_loop()
        self.pending: list[Op] = []
        self.waiters: list[asyncio.Future[None]] = []

    def write(self, *ops: Op) -> Awaitable[None]:
        future = self.loop.create_future()
        if not self.waiters:
            self.loop.call_soon(self.flush)
        self.pending.extend(ops)
        self.waiters.append(future)
        return future

    def flush(self) -> None:
        ops, self.pending = self.pending, []
        waiters, self.waiters = self.waiters, []
        self.c.execute("begin immediate")
        for op in ops:
            self.c.execute(*op)
        self.c.execute("commit")
        for future in waiters:
            future.set_result(None)


async def one_run(store: Any, run: int, n: int, *, item: Any = w.payload, done: Any = (), stop: int = -1) -> list[Any]:
    """One durable run: every step is committed before the next begins."""
    global blocked
    items = list(done)
    if not items:
        await store.write((NEW, (run, n)))
    for i in range(len(items), n):
        if i == stop:
            blocked += 1
            await asyncio.Event().wait()
        out = item(i)
        items.append(out)
        ops: list[Op] = [(INSERT, (run, i, dumps(out)))]
        if i + 1 == n:
            ops.append((FINISH, (run,)))
        await store.write(*ops)
    return items


async def main(workload: str, variant: str, folder: str) -> None:
    kind, _, grown = variant.partition("-")
    make = {"inline": Inline, "loopgroup": LoopGroup}[kind]
    if workload != "first":
        w.warm()
    store = make(folder, grown=bool(grown))
    started = time.perf_counter()
    if workload == "sequential":
        await one_run(store, 1, w.STEPS)
        w.report(seconds=time.perf_counter() - started)
    elif workload == "concurrent":
        await asyncio.gather(*(one_run(store, k, w.RUN_STEPS) for k in range(w.RUNS)))
        w.report(seconds=time.perf_counter() - started)
    elif workload == "cut":
        tasks = [asyncio.ensure_future(one_run(store, k, w.CUT_STEPS, stop=w.CUT_DONE)) for k in range(w.CUT_RUNS)]
        while blocked < len(tasks):
            await asyncio.sleep(0.01)
        os._exit(0)
    elif workload == "recover":
        rows = store.c.execute(
            "select r.id, s.data from runs r cross join steps s on s.id between r.id << 20 and (r.id << 20) + 1048575 "
            "where r.status = 0 order by r.id, s.id"
        ).fetchall()
        found: dict[int, list[Any]] = {}
        for run, data in rows:
            found.setdefault(run, []).append(json.loads(data))
        await asyncio.gather(*(one_run(store, k, w.CUT_STEPS, done=items) for k, items in found.items()))
        w.report(seconds=w.since_spawn(), found=len(found))
    elif workload == "first":
        await one_run(store, 1, 3)
        w.report(seconds=w.since_spawn())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
