"""The statements of a commit: what many runs write, in one statement and at one moment.

    given     one row for each entry of each commit (one row, too, for a commit without entries); `place` is the
              commit's place in the batch, on its last row alone
    held      these with their runs, locked in the order of their ids, so that two batches never wait for each other
    judged    whether each is accepted: fence, owner and the last seq are looked at under the lock
    the rest  writes what was accepted, and tells of the commits that were refused or have mail; of all, where some
              were for runs that are not there

New runs are made by a statement of their own, with their entries. Parts that a batch does not need are left out of the
text.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from holdfast.store.columns import STORED
from holdfast.store.postgres.rows import FLOATS, INTS, MAIL_COLUMNS

ACCEPTED, STALE, GAP, UNHEARD = 0, 1, 2, 3
NEVER = -1
"""An `after` that no run has come to: the commit is refused as a gap."""


class Parts(NamedTuple):
    """What the commits of a batch have besides entries."""

    writes: bool = True
    change: tuple[str, ...] = ()
    """What of heads is changed."""
    take: bool = False
    rebase: bool = False
    heard: bool = False


Columns = tuple[tuple[str, str], ...]

_PLAIN: Columns = (
    ("place", "bigint"),
    ("run", "text"),
    ("by", "text"),
    ("under", "bigint"),
    ("after", "bigint"),
    ("seq", "bigint"),
    ("kind", "text"),
    ("fence", "bigint"),
    ("at", "float8"),
    ("cursor", "text"),
    ("check", "text"),
    ("body", "text"),
)
CHANGEABLE = (
    ("status", "text"),
    ("owner", "text"),
    ("attempt", "bigint"),
    ("base", "bigint"),
    ("floor", "bigint"),
    ("wake_at", "float8"),
    ("expires_at", "float8"),
    ("info", "text"),
    ("error", "text"),
    ("waiting_for", "text"),
    ("started_at", "float8"),
    ("ended_at", "float8"),
)
ANYTHING = tuple(name for name, _ in CHANGEABLE)
ENDING = ("status", "owner", "ended_at")
"""What most commits change that change anything."""
BIT = {name: 1 << bit for bit, name in enumerate(ANYTHING)}
_TAKE = (("take", "text"),)
_HEARD = (("heard", "bigint"),)
_REBASE = (
    ("rebase", "bigint"),
    ("inside", "bigint"),
    ("re_kind", "text"),
    ("re_fence", "bigint"),
    ("re_at", "float8"),
    ("re_cursor", "text"),
    ("re_check", "text"),
    ("re_body", "text"),
)


# A usual step by itself: one entry and nothing else. The update is its own check; a run that does not fit gives no row,
# any other one says whether there is mail for it.
# With `=` for the owner an empty table would make the planner look for it by owner, and keep to that.
STEP = """
    with moved as (
      update runs r set seq = $4, cursor = $8, updated_at = $7
      where r.id = $1 and r.owner is not distinct from $2 and r.fence = $3 and r.seq = $4 - 1 returning r.n
    ), appended as (
      insert into entries (n, seq, kind, fence, at, cursor, "check", body)
      select m.n, $4, $5, $6, $7, $8, $9, $10 from moved m
    )
    select exists (select 1 from inbox i where i.n = m.n and not i.taken) from moved m
"""


def _names(columns: Columns) -> str:
    return ", ".join(f'"{name}"' for name, _ in columns)


def _arrays(columns: Columns, first: int = 1) -> str:
    """The columns as they are bound, from that number on."""
    return ", ".join(f"${n}::{kind}[]" for n, (_, kind) in enumerate(columns, start=first))


def columns(parts: Parts) -> Columns:
    """The columns of `given` and their types, in the order in which they are bound."""
    return (
        *_PLAIN,
        *((("changed", "bigint"),) if parts.change else ()),
        *((f"new_{name}", kind) for name, kind in CHANGEABLE if name in parts.change),
        *(_TAKE if parts.take else ()),
        *(_REBASE if parts.rebase else ()),
        *(_HEARD if parts.heard else ()),
    )


@cache
def commit_statement(parts: Parts) -> str:
    """The statement that writes commits with these parts."""
    given = columns(parts)
    lock = "order by r.id for no key update of r" if parts.writes else ""
    return f"""
    with held as materialized (
      select g.*, r.n, r.owner as held_by, r.fence as held_under, r.seq as reached, r.mailed
      from unnest({_arrays(given)}) as g ({_names(given)}) join runs r on r.id = g.run {lock}
    ), judged as materialized (
      select *, case when held_by is distinct from by or held_under <> under then {STALE}
        when after <> reached {_missing(parts)} then {GAP} {_unheard(parts)} else {ACCEPTED} end as refused
      from held
    ) {_writes(parts) if parts.writes else ""}
    select found.count, j.place, j.refused, {MAIL_COLUMNS}
    from (select count(*) from judged where place is not null) found left join (
      judged j left join inbox i on j.refused = {ACCEPTED} and i.n = j.n and not i.taken
        {"and (j.take is null or i.id <> all (j.take::bigint[]))" if parts.take else ""}
    ) on j.place is not null
      and (j.refused <> {ACCEPTED} or i.id is not null or found.count <> ${len(given) + 1}::bigint)
    """


def _missing(parts: Parts) -> str:
    """Whether the entry that a rebase names is neither in the log nor in the commit."""
    if not parts.rebase:
        return ""
    return """or (rebase is not null and inside is null
          and not exists (select 1 from entries e where e.n = held.n and e.seq = held.rebase))"""


def _unheard(parts: Parts) -> str:
    """Whether mail waits that came after the last one heard of.

    What was posted while the lock was waited for is not seen by a statement that began before. But then the count of
    mail in the locked row, which is the newest, is another one than in the row as the statement sees it.
    """
    if not parts.heard:
        return ""
    return f"""when heard is not null and (
          exists (select 1 from inbox i where i.n = held.n and not i.taken and i.id > heard)
          or mailed <> (select s.mailed from runs s where s.n = held.n)) then {UNHEARD}"""


def _writes(parts: Parts) -> str:
    accepted = f"j.refused = {ACCEPTED}"
    whole = f"j.place is not null and {accepted}"
    text = f""", appended as (
      insert into entries (n, seq, kind, fence, at, cursor, "check", body)
      select j.n, j.seq, j.kind, j.fence, j.at, j.cursor, j."check", j.body from judged j
      where {accepted} and j.seq is not null
    ), moved as (
      update runs r set {_moves(parts)} from judged j where r.id = j.run and {whole} {_if_any(parts)}
    )"""
    if parts.take:
        # Keyed mail stays, marked as taken, so that its key is refused ever after.
        mine = f"{whole} and i.n = j.n and i.id = any (j.take::bigint[])"
        text += f""", marked as (
      update inbox i set taken = true, body = '' from judged j where i.key is not null and {mine}
    ), dropped as (
      delete from inbox i using judged j where i.key is null and {mine}
    )"""
    if parts.rebase:
        text += f""", replaced as (
      update entries e set kind = j.re_kind, fence = j.re_fence, at = j.re_at, cursor = j.re_cursor,
        "check" = j.re_check, body = j.re_body
      from judged j where {whole} and j.inside is null and e.n = j.n and e.seq = j.rebase
    ), forgotten as (
      delete from entries e using judged j where {whole} and e.n = j.n and e.seq < j.rebase
    )"""
    return text


def _moves(parts: Parts) -> str:
    """What becomes of a run's row."""
    if not (parts.change or parts.rebase):
        return "seq = j.seq, cursor = j.cursor, updated_at = j.at"
    last = "j.seq is null and j.rebase = r.seq" if parts.rebase else "false"
    moved = [
        "seq = coalesce(j.seq, r.seq)",
        f"cursor = case when {last} then j.re_cursor else coalesce(j.cursor, r.cursor) end"
        if parts.rebase
        else "cursor = coalesce(j.cursor, r.cursor)",
        f"updated_at = case when {last} then j.re_at else coalesce(j.at, r.updated_at) end"
        if parts.rebase
        else "updated_at = coalesce(j.at, r.updated_at)",
    ]
    moved += [
        f"{name} = case when j.changed & {bit} <> 0 then j.new_{name} else r.{name} end"
        for name, bit in BIT.items()
        if name in parts.change
    ]
    return ", ".join(moved)


def _if_any(parts: Parts) -> str:
    """Leaves alone the rows in which nothing changes."""
    terms = ["j.seq is not null"]
    if parts.change:
        terms.append("j.changed <> 0")
    if parts.rebase:
        terms.append("j.rebase is not null")
    return f"and ({' or '.join(terms)})"


def _kind_of(column: str) -> str:
    """The type of a column of runs that is written when a run is made."""
    return "bigint" if column in INTS else "float8" if column in FLOATS else "text"


NEW_RUN = (
    *((name, _kind_of(name)) for name in STORED),
    ("seq", "bigint"),
    ("cursor", "text"),
    ("updated_at", "float8"),
)
"""The columns of a new run, and their types."""
_FIRST = 1 + len(NEW_RUN)
NEW_ENTRY = tuple(column for column in _PLAIN if column[0] not in ("place", "by", "under", "after"))
"""The columns of an entry of a new run, and their types."""

# An id that is taken makes no row, and then the ids are told that were not.
CREATE_RUNS = f"""
    with made as (
      insert into runs ({", ".join(name for name, _ in NEW_RUN)})
      select * from unnest({_arrays(NEW_RUN)}) as g
      on conflict (id) do nothing returning n, id
    ), appended as (
      insert into entries (n, {_names(NEW_ENTRY[1:])})
      select m.n, {", ".join(f'e."{name}"' for name, _ in NEW_ENTRY[1:])}
      from unnest({_arrays(NEW_ENTRY, _FIRST)}) as e ({_names(NEW_ENTRY)}) join made m on m.id = e.run
    )
    select case when count(*) < ${_FIRST + len(NEW_ENTRY)}::bigint then coalesce(array_agg(id), '{{}}') end from made
"""
