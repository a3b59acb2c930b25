"""The physical limit on PostgreSQL: a bare journal, no framework.

    python raw_postgres.py WORKLOAD VARIANT URL

`inline` is one insert per step through psycopg, `group` commits together what became ready while the last batch
was on its way, through asyncpg and one connection.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from typing import Any

import asyncpg
import psycopg
import raw
import workloads as w
from raw import FINISH, INSERT, NEW, Op

TABLES = (
    "create table raw_runs (id int primary key, n int, status int)",
    "create table raw_steps (run int, seq int, data text, primary key (run, seq))",
)
ONE = {
    INSERT: "insert into raw_steps values (%s, %s, %s)",
    NEW: "insert into raw_runs values (%s, %s, 0)",
    FINISH: "update raw_runs set status = 1 where id = %s",
}
MANY = {
    INSERT: "insert into raw_steps select * from unnest($1::int[], $2::int[], $3::text[])",
    NEW: "insert into raw_runs select *, 0 from unnest($1::int[], $2::int[])",
    FINISH: "update raw_runs set status = 1 where id = any($1::int[])",
}


class Inline:
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.c = connection

    @classmethod
    async def open(cls, url: str) -> Inline:
        return cls(await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=1))

    async def write(self, *ops: Op) -> None:
        if len(ops) == 1:
            await self.c.execute(ONE[ops[0][0]], ops[0][1])
            return
        async with self.c.transaction():
            for text, values in ops:
                await self.c.execute(ONE[text], values)

    async def close(self) -> None:
        await self.c.close()


class Group:
    def __init__(self, connection: Any) -> None:
        self.c = connection
        self.loop = asyncio.get_running_loop()
        self.pending: list[tuple[tuple[Op, ...], asyncio.Future[None]]] = []
        self.wake = asyncio.Event()
        self.task = asyncio.ensure_future(self.run())

    @classmethod
    async def open(cls, url: str) -> Group:
        return cls(await asyncpg.connect(url))

    def write(self, *ops: Op) -> Awaitable[None]:
        future: asyncio.Future[None] = self.loop.create_future()
        self.pending.append((ops, future))
        self.wake.set()
        return future

    async def run(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            await asyncio.sleep(0)
            batch, self.pending = self.pending, []
            rows: dict[str, list[tuple[Any, ...]]] = {NEW: [], INSERT: [], FINISH: []}
            for ops, _ in batch:
                for text, values in ops:
                    rows[text].append(values)
            async with self.c.transaction():
                for text, some in rows.items():
                    if some:
                        await self.c.execute(MANY[text], *map(list, zip(*some, strict=True)))
            for _, future in batch:
                future.set_result(None)

    async def close(self) -> None:
        self.task.cancel()
        await self.c.close()


async def main(workload: str, variant: str, url: str) -> None:
    w.warm()
    with psycopg.connect(url, autocommit=True) as admin:
        for table in TABLES:
            admin.execute(table)  # type: ignore[call-overload]
    store: Any = await {"inline": Inline, "group": Group}[variant].open(url)
    started = time.perf_counter()
    if workload == "pg-sequential":
        await raw.one_run(store, 1, w.STEPS)
    else:
        await asyncio.gather(*(raw.one_run(store, k, w.RUN_STEPS) for k in range(w.RUNS)))
    w.report(seconds=time.perf_counter() - started)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
