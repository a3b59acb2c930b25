"""How a claim gets its runs.

They are chosen without a lock, and then taken, each only if it is still as it was. So nobody holds a lock while
choosing, and whoever was slower finds out and looks again. Limits are counted and filled under one lock for each
limited flow.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from psycopg import AsyncConnection

from holdfast.model import Claim, Query
from holdfast.store.postgres import rows
from holdfast.store.postgres.arrays import ints, texts
from holdfast.store.postgres.choosing import Candidate, choose
from holdfast.store.postgres.schema import lock_number

_TRIES = 5
_TRIES_BY_NAME = 100  # every one of them is lost to somebody who was quicker

_LOCK_FLOWS = "select pg_advisory_xact_lock(number) from unnest($1::bigint[]) number"
_CLAIM = f"""
    with held as materialized (
      select r.id
      from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[]) g (id, fence, owner, status, seq)
      join runs r on r.id = g.id
      where r.fence = g.fence and r.owner is not distinct from g.owner and r.status = g.status and r.seq = g.seq
        and (r.owner is null or r.owner = $6 or not {rows.OWNED})
      order by r.id for no key update of r %s
    )
    update runs r set owner = $6, fence = r.fence + 1, attempt = r.attempt + 1 from held h where r.id = h.id
    returning {rows.HEAD_COLUMNS}
"""
_CLAIM_FREE, _CLAIM_NAMED = _CLAIM % "skip locked", _CLAIM % ""
# Only of the runs that the statement before has taken, in the same transaction.
_MINE = """
    from unnest($1::text[], $2::bigint[]) g (id, fence) join runs r on r.id = g.id
      and r.fence = g.fence + 1 and r.owner is not distinct from $3
"""
_LOGS = f"""
    select r.id, {rows.ENTRY_COLUMNS} {_MINE} join entries e on e.n = r.n and e.seq >= r.base order by e.n, e.seq
"""
_MAIL = f"select r.id, {rows.MAIL_COLUMNS} {_MINE} join inbox i on i.n = r.n and not i.taken order by i.id"


async def claim_runs(connection: AsyncConnection, query: Query, owner: str, schema: str) -> list[Claim]:
    """What the store's `claim_runs` gives, on this connection."""
    claims: list[Claim] = []
    for _ in range(_TRIES if query.ids is None else _TRIES_BY_NAME):
        left = query.limit - len(claims)
        if left <= 0:
            break
        again = replace(query, but=(*query.but, *(claim.head.id for claim in claims)), limit=left)
        if query.in_turn and query.limits:
            async with connection.transaction():
                numbers = sorted({lock_number("holdfast", schema, limit.flow) for limit in query.limits})
                await connection.execute(_LOCK_FLOWS, (ints(numbers),))
                chosen, got = await _claim_once(connection, again, owner)
        else:
            chosen, got = await _claim_once(connection, again, owner)
        claims += got
        if len(got) == chosen:
            break
    if not query.in_turn:
        claims.sort(key=lambda claim: (claim.head.created_at, claim.head.id), reverse=True)
    return claims


async def _claim_once(connection: AsyncConnection, query: Query, owner: str) -> tuple[int, list[Claim]]:
    """How many runs were chosen, and those of them that nobody took meanwhile."""
    chosen = await choose(connection, query, owner)
    if not chosen:
        return 0, []
    return len(chosen), await _take(connection, chosen, owner, wait=query.ids is not None)


async def _take(connection: AsyncConnection, chosen: list[Candidate], owner: str, *, wait: bool) -> list[Claim]:
    """Those of these runs that are still as they were, in the order given."""
    ids, fences = texts([one.id for one in chosen]), ints([one.fence for one in chosen])
    same = (texts([o.owner for o in chosen]), texts([o.status for o in chosen]), ints([o.seq for o in chosen]))
    async with connection.pipeline():
        claimed = await connection.execute(
            _CLAIM_NAMED if wait else _CLAIM_FREE, (ids, fences, *same, owner), prepare=True, binary=True
        )
        logged = await connection.execute(_LOGS, (ids, fences, owner), prepare=True, binary=True)
        posted = await connection.execute(_MAIL, (ids, fences, owner), prepare=True, binary=True)
    heads = {head.id: head for head in map(rows.head_from, await claimed.fetchall())}
    entries: dict[str, list[Any]] = {run: [] for run in heads}
    mail: dict[str, list[Any]] = {run: [] for run in heads}
    for run, *row in await logged.fetchall():
        if run in entries:
            entries[run].append(rows.entry_from(tuple(row)))
    for run, *row in await posted.fetchall():
        if run in mail:
            mail[run].append(rows.mail_from(tuple(row)))
    return [Claim(heads[one.id], tuple(entries[one.id]), tuple(mail[one.id])) for one in chosen if one.id in heads]
