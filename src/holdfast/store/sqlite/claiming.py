"""Which runs a claim gets. However long the queues are, only as much of each is read as could be claimed."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast.core.turns import first_in_turn, rank, reached
from holdfast.model import Claim, Entry, Mail, Query
from holdfast.store.sqlite import sql

_UNFINISHED = "('pending', 'running', 'waiting', 'paused', 'interrupted')"  # as in the index of that name
_LIGHT = f"""
    select r.n, {", ".join(sql.as_bytes(f"r.{name}") for name in ("id", "flow", "queue", "key"))}, r.priority,
      r.created_at
    from runs r
"""
_FIRST = "order by r.priority desc, r.created_at, r.id limit ?"
# From one queue to the next through the index, without reading what stands in them.
_QUEUES = f"""
    with recursive queues (queue) as (
      select min(queue) from runs where owner is null and status in {_UNFINISHED}
      union all
      select (select min(queue) from runs where owner is null and status in {_UNFINISHED} and queue > q.queue)
      from queues q where q.queue is not null
    )
    select {sql.as_bytes("queue")} from queues where queue is not null
"""


class _Candidate(NamedTuple):
    n: int
    id: str
    flow: str
    queue: str
    key: str | None
    priority: int
    created_at: float


def _candidate(row: tuple[Any, ...]) -> _Candidate:
    n, run, flow, queue, key, priority, created_at = row
    texts = sql.text(run), sql.text(flow), sql.text(queue), None if key is None else sql.text(key)
    return _Candidate(n, *texts, priority, created_at)


def claimable(connection: apsw.Connection, query: Query, live: set[str], owner: str) -> list[int]:
    """The internal numbers of the runs that `owner` gets with this query, in order."""
    if not query.in_turn:
        where, values = sql.conditions(query, live, owner)
        newest_first = "order by r.created_at desc, r.id desc limit ?"
        rows = connection.execute(f"select r.n from runs r where {where} {newest_first}", [*values, query.limit])
        return [n for (n,) in rows]
    owners = msgspec.json.encode(sorted(live)).decode()
    owned = f"{_LIGHT} where r.owner in (select value from json_each(?)) and r.status in {_UNFINISHED}"
    under_way = [_candidate(row) for row in connection.execute(owned, (owners,))]
    where, values = sql.conditions(query, live, owner)
    where += f" and r.status in {_UNFINISHED}"
    # The claimer's own, and all whose owner is dead: never many. Who may be chosen does not count against a limit.
    lost = [_candidate(row) for row in connection.execute(f"{_LIGHT} where r.owner is not null and {where}", values)]
    ids = {one.id for one in lost}
    others = [one for one in under_way if one.id not in ids]
    where, values = _open_to_all(where, values, reached(others, query.limits))
    depth, chosen = max(query.limit, 1), None
    while chosen is None:
        found, cut = _free(connection, query, where, values, depth)
        # Behind where a queue was cut, others stand before them who are not known yet.
        found += [one for one in lost if one.queue not in cut or rank(one) <= cut[one.queue]]
        chosen = first_in_turn(found, others, query.limits, query.limit, cut)
        depth *= 8
    return [one.n for one in chosen]


def claimed(connection: apsw.Connection, numbers: list[int], live: set[str], owner: str) -> list[Claim]:
    """Make `owner` the owner of these runs: what it needs to go on with them, read with a few statements for all."""
    these = (str(numbers),)
    connection.execute(sql.CLAIM, (*these, owner))
    found = connection.execute(f"{sql.HEADS} where r.n in (select value from json_each(?))", these)
    heads = {row[0]: sql.head_from(row, live) for row in found}
    logs: dict[int, list[Entry]] = {n: [] for n in numbers}
    for n, *entry in connection.execute(sql.READ_LOGS, these):
        logs[n].append(sql.entry_from(entry))
    mail: dict[int, list[Mail]] = {n: [] for n in numbers}
    for n, *one in connection.execute(sql.READ_MAIL_OF_MANY, these):
        mail[n].append(sql.mail_from(one))
    return [Claim(heads[n], tuple(sorted(logs[n], key=_seq)), tuple(mail[n])) for n in numbers]


_seq = attrgetter("seq")


def _open_to_all(where: str, values: list[Any], full: tuple[set[str], set[tuple[str, str]]]) -> tuple[str, list[Any]]:
    """Leave out what has come to a limit already, or nobody behind it would be seen."""
    flows, keys = (msgspec.json.encode(sorted(some)).decode() for some in full)
    return (
        f"{where} and r.flow not in (select value from json_each(?)) and not exists "
        f"(select 1 from json_each(?) b where b.value ->> 0 = r.flow and b.value ->> 1 = r.key)",
        [*values, flows, keys],
    )


def _free(
    connection: apsw.Connection, query: Query, where: str, values: list[Any], depth: int
) -> tuple[list[_Candidate], dict[str, tuple[int, float, str]]]:
    """The first of each queue that nobody has; for the queues that have more, where the last of these stands."""
    found: list[_Candidate] = []
    cut: dict[str, tuple[int, float, str]] = {}
    queues = query.queues if query.queues is not None else [sql.text(name) for (name,) in connection.execute(_QUEUES)]
    text = f"{_LIGHT} where r.owner is null and r.queue = ? and {where} {_FIRST}"
    for queue in set(queues):
        rows = list(connection.execute(text, [queue, *values, depth]))
        found += [_candidate(row) for row in rows]
        if len(rows) == depth:
            cut[queue] = rank(found[-1])
    return found, cut
