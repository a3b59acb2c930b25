"""Which runs a claim is to get, looked for without locking any.

Whose turn it is, is decided by `holdfast.core.turns` on the first runs of each queue, which the index `runs_ready`
gives: however long the queues are, only as much of each is read as could be claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace
from psycopg import AsyncConnection

from holdfast.core.turns import first_in_turn, rank, reached
from holdfast.model import Query, RunStatus
from holdfast.store.postgres import rows
from holdfast.store.postgres.arrays import texts
from holdfast.store.postgres.schema import UNFINISHED
from holdfast.store.postgres.selecting import NEWEST, Bound, conditions, has_metadata

_PAGE = 500
_OPEN = tuple(str(status) for status in RunStatus if f"'{status}'" in UNFINISHED)
_LIGHT = "r.id, r.flow, r.queue, r.key, r.priority, r.created_at, r.fence, r.owner, r.status, r.seq"
_ANY_TIME: dict[str, Any] = {"due_by": None, "idle_by": None}
_FIRST = "order by r.priority desc, r.created_at, r.id"

# Who else is at work on what: those of the claimer itself are candidates too, and given one by one.
UNDER_WAY = f"""
    select null, r.flow, r.queue, r.key, count(*) from runs r
    where r.owner = any ({rows.LIVE}) and r.owner <> $1 and r.status in {UNFINISHED} group by r.flow, r.queue, r.key
    union all
    select r.id, r.flow, r.queue, r.key, 1 from runs r
    where r.owner = any ({rows.LIVE}) and r.owner = $1 and r.status in {UNFINISHED}
"""
# From one owner, or one queue and status, to the next through the index, without reading what stands between.
_OWNERS = """
    with recursive had (owner) as (
      (select r.owner from runs r where r.owner is not null order by r.owner limit 1)
      union all
      select (select r.owner from runs r where r.owner > h.owner order by r.owner limit 1) from had h
      where h.owner is not null
    ) select h.owner from had h where h.owner is not null
"""
QUEUES = f"""
    with recursive queues (queue) as (
      (select r.queue from runs r where r.owner is null and r.wake_at is null and r.status in {UNFINISHED}
       order by r.queue limit 1)
      union all
      select (select r.queue from runs r where r.owner is null and r.wake_at is null and r.status in {UNFINISHED}
              and r.queue > q.queue order by r.queue limit 1)
      from queues q where q.queue is not null
    ) select array_agg(queue) from queues where queue is not null
"""


class Candidate(NamedTuple):
    """What must be known of a run to choose it, and to know later whether it is still the same."""

    id: str
    flow: str
    queue: str
    key: str | None
    priority: int
    created_at: float
    fence: int = 0
    owner: str | None = None
    status: str = ""
    seq: int = 0


async def choose(connection: AsyncConnection, query: Query, owner: str) -> list[Candidate]:
    """The runs that `owner` is to claim, in order."""
    return await (_in_turn if query.in_turn else _newest)(connection, query, owner)


async def _newest(connection: AsyncConnection, query: Query, owner: str) -> list[Candidate]:
    found: list[Candidate] = []
    page = query
    while len(found) < query.limit:
        size = min(query.limit, _PAGE) if query.metadata else query.limit
        text, values = newest_statement(page, owner, size)
        some = await (await connection.execute(text, values, prepare=False, binary=True)).fetchall()
        kept = await _with_metadata(connection, [Candidate(*row) for row in some], query)
        found += kept
        if len(some) < size:
            break
        page = replace(query, after=(some[-1][5], some[-1][0]))
    return found[: query.limit]


def newest_statement(query: Query, owner: str, limit: int) -> tuple[str, list[Any]]:
    """The statement for the newest runs that this owner may claim."""
    bound = Bound()
    where = " and ".join(conditions(query, bound, claimable_by=owner))
    return f"select {_LIGHT} from runs r where {where} {NEWEST} limit {bound(limit, 'bigint')}", bound.values


async def _with_metadata(connection: AsyncConnection, some: list[Candidate], query: Query) -> list[Candidate]:
    if not (query.metadata and some):
        return some
    text = f"select {rows.HEAD_COLUMNS} from runs r where r.id = any ($1::text[])"
    found = await (await connection.execute(text, (texts([one.id for one in some]),), binary=True)).fetchall()
    fit = {head.id for head in map(rows.head_from, found) if has_metadata(head, query)}
    return [one for one in some if one.id in fit]


async def _in_turn(connection: AsyncConnection, query: Query, owner: str) -> list[Candidate]:
    found = await (await connection.execute(UNDER_WAY, (owner,), binary=True)).fetchall()
    text, values = lost_statement(query, owner)
    had = await (await connection.execute(text, values, prepare=False, binary=True)).fetchall()
    lost = await _with_metadata(connection, [Candidate(*row) for row in had], query)
    ids = {one.id for one in lost}
    others = [one for one in _each(found) if one.id not in ids]  # who may be chosen does not count against a limit
    full = reached(others, query.limits)
    queues = sorted(set(query.queues or ()))
    if query.queues is None and not is_narrow(query):
        row = await (await connection.execute(QUEUES, binary=True)).fetchone()
        queues = (row[0] if row else None) or []
    depth = max(query.limit, 1)
    while True:
        text, values = turn_statement(query, full, queues, depth)
        some = await (await connection.execute(text, values, prepare=False, binary=True)).fetchall()
        free = [(Candidate(*row[:-1]), row[-1]) for row in some]
        known, cut = _known([*((one, None) for one in lost), *free], depth)
        known = await _with_metadata(connection, known, query)
        chosen = first_in_turn(known, others, query.limits, query.limit, cut)
        if chosen is not None:
            return chosen
        depth *= 8


def _each(found: Iterable[tuple[Any, ...]]) -> Iterator[Candidate]:
    for run, flow, queue, key, count in found:
        for _ in range(count):
            yield Candidate(run or "", flow, queue, key, 0, 0.0)


def _known(found: list[tuple[Candidate, str | None]], depth: int) -> tuple[list[Candidate], set[str]]:
    """The candidates up to where nothing is missing, and the queues in which more stand behind them.

    Each comes with the status by which it was looked for, at most `depth` of a queue; None means that all are there.
    """
    counted: dict[tuple[str, str], list[Candidate]] = {}
    for one, status in found:
        if status is not None:
            counted.setdefault((one.queue, status), []).append(one)
    last: dict[str, tuple[int, float, str]] = {}
    for (queue, _), some in counted.items():
        if len(some) >= depth:
            end = max(map(rank, some))
            last[queue] = min(last.get(queue, end), end)
    return [one for one, _ in found if one.queue not in last or rank(one) <= last[one.queue]], set(last)


def lost_statement(query: Query, owner: str) -> tuple[str, list[Any]]:
    """The statement for the claimer's own runs and those that lost their owner: never many, and they come all."""
    bound = Bound()
    where = conditions(replace(query, **_ANY_TIME), bound)
    where += [_in_time(query, bound), f"r.status in {UNFINISHED}", _whose_owner_is_lost(owner, bound)]
    return f"select {_LIGHT} from runs r where {' and '.join(where)}", bound.values


def turn_statement(
    query: Query, full: tuple[set[str], set[tuple[str, str]]], queues: list[str], depth: int
) -> tuple[str, list[Any]]:
    """The statement for the runs that nobody has, among which the next turns are given out.

    Those that wait for no time come through `runs_ready`, at most `depth` of each queue and status; the others, which
    are due or have mail, are never many and come all. No condition stands
    there twice: the planner would take the rows to be fewer than they are.
    """
    bound = Bound()
    fits = " and ".join(
        [*conditions(replace(query, states=None, queues=None, **_ANY_TIME), bound), *_not_full(full, bound)]
    )
    unowned = [
        one for one in _OPEN if query.states is None or (one, None) in query.states or (one, False) in query.states
    ]
    nobodys = f"r.owner is null and r.status in {UNFINISHED} and r.status = any ({bound(unowned, 'text[]')})"
    in_queue = f"r.queue = any ({bound(queues, 'text[]')})" if query.queues is not None else "true"
    if is_narrow(query):
        return _all(f"{fits} and {in_queue} and {_in_time(query, bound)} and {nobodys}"), bound.values
    until = f"r.wake_at <= {bound(query.idle_by, 'float8')}" if query.idle_by is not None else "r.wake_at is not null"
    due = _all(f"{fits} and {in_queue} and {until} and {nobodys}")
    ready = f"""
      select c.* from unnest({bound(queues, "text[]")}) q (queue), unnest({bound(unowned, "text[]")}) s (status),
      lateral (
        select {_LIGHT}, r.status as sought from runs r
        where r.queue = q.queue and r.status = s.status and r.owner is null and r.wake_at is null
          and r.status in {UNFINISHED} and {fits}
        {_FIRST} limit {bound(depth, "bigint")}
      ) c"""
    return f"{due} union all ({ready})", bound.values


def is_narrow(query: Query) -> bool:
    """Whether what is asked for beside the queue leaves few runs, which are found by that."""
    return query.ids is not None or query.due_by is not None or bool(query.has_mail)


def _all(where: str) -> str:
    return f"(select {_LIGHT}, null::text from runs r where {where})"


def _not_full(full: tuple[set[str], set[tuple[str, str]]], bound: Bound) -> list[str]:
    """Leaves out what has come to a limit already, or nobody behind it would be seen."""
    flows, keys = sorted(full[0]), sorted(full[1])
    where = [f"r.flow <> all ({bound(flows, 'text[]')})"] if flows else []
    if keys:
        of, key = bound([flow for flow, _ in keys], "text[]"), bound([key for _, key in keys], "text[]")
        where.append(f"(r.key is null or (r.flow, r.key) not in (select * from unnest({of}, {key})))")
    return where


def _in_time(query: Query, bound: Bound) -> str:
    if query.due_by is not None:
        by = query.due_by if query.idle_by is None else min(query.due_by, query.idle_by)
        return f"r.wake_at <= {bound(by, 'float8')}"
    if query.idle_by is not None:
        return f"(r.wake_at is null or r.wake_at <= {bound(query.idle_by, 'float8')})"
    return "true"


def _whose_owner_is_lost(owner: str, bound: Bound) -> str:
    """Whether it is the claimer's own, or a dead owner's: found by going through the owners."""
    lost = f"h.owner = {bound(owner, 'text')} or h.owner <> all ({rows.LIVE})"
    return f"r.owner = any (array(select h.owner from ({_OWNERS}) h where {lost}))"
