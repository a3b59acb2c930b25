"""Every statement of the SQLite store, and how rows become records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from holdfast.model import Entry, Head, Mail, Query
from holdfast.store.columns import NUMBERS, STORED, stored_of

_JSON = ("metadata", "info", "error")
_JSON_PLACES = [STORED.index(name) for name in _JSON]
_TEXTS = tuple(name for name in STORED if name not in (*NUMBERS, *_JSON))


def as_bytes(column: str) -> str:
    """Reads a text as the bytes that it is: damage may leave some that are no text, and others must still be read."""
    return f"cast({column} as blob)"


def text(data: bytes | None) -> str:
    """What such bytes say, whatever they are. Where it matters, a checksum tells that it is not what was written."""
    return (data or b"").decode(errors="replace")


def _values(columns: int, rows: int) -> str:
    """So many rows to bind. The statements with them make nothing of a row of nulls."""
    row = f"({','.join('?' * columns)})"
    return f"values {','.join([row] * rows)}"


CREATE_WIDTH = len(STORED)
"""How many values `create_runs` takes for a row."""


@cache
def create_runs(rows: int) -> str:
    """The statement that makes these runs, but those whose ids are taken."""
    return f"""
    insert or ignore into runs ({", ".join(STORED)})
    select * from ({_values(CREATE_WIDTH, rows)}) where column1 is not null
"""


APPEND_WIDTH = 10
"""How many values `append` takes for a row; the owner is bound once, behind all rows."""


@cache
def append(rows: int) -> str:
    """The hot path: the statement that appends so many entries, of one or of several commits of one owner.

    Writes nothing of a commit when its fence or owner is stale, or when the last entry before it (`after`; null
    when there is none) is missing; and no entry whose place is taken. One statement, so nobody can claim a
    run between the check and the write. A row without a seq is the beginning of the body of the next one.
    JSON comes as the bytes that it is, and becomes text here, where no other thread waits for it.
    """
    # The rows are named by a subquery and not by `with`, which SQLite takes three times as long to make ready.
    return f"""
    insert or ignore into entries (id, kind, fence, at, cursor, "check", begun, body)
    select (n << 32) | seq, kind, g.fence, at, cast(cursor as text), "check", begun, cast(body as text) from (
      select column1 as run, column2 as fence, column3 as after, column4 as seq, column5 as kind, column6 as at,
        column7 as cursor, column8 as "check", column9 as begun, column10 as body
      from ({_values(APPEND_WIDTH, rows)})
    ) g cross join runs r
    where r.id = g.run and r.owner = ? and r.fence = g.fence
      and (after is null or exists (select 1 from entries e where e.id = (n << 32) | after))
"""


@cache
def append_steps(rows: int) -> str:
    """The statement for steps that is its own transaction: of one whose place is taken no row is written."""
    return f"{append(rows)} and not exists (select 1 from entries e where e.id = ((n << 32) | after) + 1)"


# For a step by itself; its row, if it is written, says whether there is any mail in the store.
APPEND_STEP = f"{append(1)} returning exists (select 1 from inbox where taken = 0)"
APPEND_SPLIT_STEP = f"{append_steps(2)} returning exists (select 1 from inbox where taken = 0)"
MOST_STEPS = 250  # each takes two rows at most, and the text of the statement stays among those that are kept
FIND_OWNED = "select n from runs where id = ? and owner = ? and fence = ?"
FIND_RUN = "select n from runs where id = ?"
FIND_OWNER = f"select n, {as_bytes('owner')} from runs where id = ?"
LAST_SEQ = """
    select max(id) & 4294967295 from entries
    where id between (select n from runs where id = ?1) << 32
      and (select n from runs where id = ?1) << 32 | 4294967295
"""
_UNHEARD = "exists (select 1 from inbox i where i.n = {n} and i.taken = 0 and i.id > {heard})"
HAS_UNHEARD = f"select {_UNHEARD.format(n='(select n from runs where id = ?1)', heard='?2')}"
HAS_ENTRY = "select 1 from entries where id = ((select n from runs where id = ?1) << 32) | ?2"
WRITTEN_SINCE = f"{HAS_ENTRY} and fence = ?3 and place > ?4"
REPLACE_ENTRY = """
    update entries set kind = ?3, fence = ?4, at = ?5, cursor = ?6, "check" = ?7, begun = 0, body = ?8
    where id = (?1 << 32) | ?2
"""
# Both drop the beginnings of bodies with their entries; the first one also that of the entry it stops at, which was
# replaced as a whole.
DROP_BEFORE = """
    with gone as (select place, id from entries where id between ?1 << 32 and (?1 << 32) | ?2)
    delete from entries where place in (
        select place from gone where id < (?1 << 32) | ?2
        union all select b.place from gone join entries b on b.place = gone.place - 1 where b.id is null)
"""
DROP_ENTRIES = """
    with gone as (select place from entries where id between ?1 << 32 and (?1 << 32) | 4294967295)
    delete from entries where place in (
        select place from gone
        union all select b.place from gone join entries b on b.place = gone.place - 1 where b.id is null)
"""

# Keyed mail stays, marked as taken, so that its key is refused ever after.
TAKE_KEYED = "update inbox set taken = 1, body = '' where id = ? and n = ? and key is not null"
TAKE_PLAIN = "delete from inbox where id = ? and n = ? and key is null"
ANY_MAIL = "select 1 from inbox where taken = 0 limit 1"
_MAIL = f"{as_bytes('i.kind')}, {as_bytes('i.body')}, {as_bytes('i.key')}, i.at, i.id"
READ_MAIL = f"select {_MAIL} from inbox i where i.n = ? and i.taken = 0 order by i.id"
READ_MAIL_OF_MANY = f"""
    select i.n, {_MAIL}
    from json_each(?) j cross join inbox i on i.n = j.value and i.taken = 0 order by i.id
"""
POST_MAIL = "insert or ignore into inbox (n, kind, body, key, at) values (?, ?, ?, ?, ?)"

_ENTRY = f"""
    e.id & 4294967295, {as_bytes("e.kind")}, e.fence, e.at, {as_bytes("e.cursor")}, {as_bytes("e.body")},
      {as_bytes('e."check"')},
      case when e.begun then
        (select {as_bytes("b.body")} from entries b where b.place = e.place - 1 and b.id is null) end
"""
READ_ENTRIES = f"""
    select {_ENTRY} from entries e where id > (?1 << 32) | ?2 and id <= (?1 << 32) | ?3 order by id limit ?4
"""
# The same of many runs, each from its base on.
READ_LOGS = f"""
    select r.n, {_ENTRY} from json_each(?) j cross join runs r on r.n = j.value
    cross join entries e on e.id >= (r.n << 32) | r.base and e.id <= (r.n << 32) | 4294967295
"""
WITHOUT_LOG = f"""
    select {as_bytes("id")} from runs
    where not exists (select 1 from entries where entries.id between n << 32 and (n << 32) | 4294967295)
"""
# Rows that belong to no run: entries of none, and beginnings of a body without the entry behind them.
COUNT_STRAY = """
    select count(*) from entries e
    where coalesce(id, (select f.id from entries f where f.place = e.place + 1)) >> 32 not in (select n from runs)
       or (id is null and not exists (select 1 from entries f where f.place = e.place + 1 and f.begun))
"""
CLAIM = """
    update runs set owner = ?2, fence = fence + 1, attempt = attempt + 1 where n in (select value from json_each(?1))
"""
BEAT = """
    insert into owners (id, name, beat_at, lease_until, info) values (?1, ?2, ?3, ?4, ?5)
    on conflict (id) do update set name = ?2, beat_at = ?3, lease_until = ?4, info = ?5
"""
LIVE_OWNERS = f"select {as_bytes('id')} from owners where lease_until > ?"
READ_OWNERS = f"select {as_bytes('id')}, {as_bytes('name')}, beat_at, {as_bytes('info')} from owners order by id"
FORGET_OWNERS = """
    delete from owners where lease_until < ? and id not in (select owner from runs where owner is not null)
"""

_COLUMNS = ", ".join(f"r.{name}" if name in NUMBERS else as_bytes(f"r.{name}") for name in STORED)
HEADS = f"""
    select r.n, {_COLUMNS}, e.id & 4294967295, {as_bytes("e.cursor")}, e.at
    from runs r join entries e
      on e.id = (select max(id) from entries where id between r.n << 32 and (r.n << 32) | 4294967295)
"""


def head_values(head: Head) -> list[Any]:
    """What `create_runs` binds for a head: JSON is text that a person can read."""
    values = list(stored_of(head))
    for place in _JSON_PLACES:
        if values[place] is not None:
            values[place] = values[place].decode()
    return values


def change_values(changes: dict[str, Any]) -> list[Any]:
    """What `update_runs` binds for these fields, in their order."""
    return [value.decode() if type(value) is bytes else value for value in changes.values()]


def update_width(names: tuple[str, ...]) -> int:
    """How many values `update_runs` takes for a row; the owner is bound once, behind all rows."""
    return len(names) + 3


@cache
def update_runs(names: tuple[str, ...], rows: int) -> str:
    """The statement that sets these fields of so many runs; the names come from HeadChange, never from data.

    Nothing of a run to which more mail has come than was heard of.
    """
    at = len(names)
    return f"""
    update runs set {", ".join(f"{name} = g.column{place}" for place, name in enumerate(names, start=1))}
    from ({_values(update_width(names), rows)}) g
    where runs.id = g.column{at + 1} and runs.fence = g.column{at + 2} and runs.owner = ?
      and (g.column{at + 3} is null or not {_UNHEARD.format(n="runs.n", heard=f"g.column{at + 3}")})
"""


def head_from(row: tuple[Any, ...], live: set[str]) -> Head:
    """The head in a row of HEADS; `live` are the owners known to be alive."""
    fields = dict(zip(STORED, row[1:-3], strict=True))
    for name in _TEXTS:
        if fields[name] is not None:
            fields[name] = text(fields[name])
    seq, cursor, at = row[-3:]
    return Head(**fields, owned=fields["owner"] in live, seq=seq, cursor=cursor, updated_at=at)


def entry_from(row: Sequence[Any]) -> Entry:
    """The entry in a row of READ_ENTRIES."""
    seq, kind, fence, at, cursor, body, check, beginning = row
    return Entry(seq, text(kind), fence, at, cursor, body if beginning is None else beginning + body, text(check))


def mail_from(row: Sequence[Any]) -> Mail:
    """The mail in a row of READ_MAIL."""
    kind, body, key, at, mail_id = row
    return Mail(text(kind), body, None if key is None else text(key), at, mail_id)


def select_heads(query: Query, live: set[str]) -> tuple[str, list[Any]]:
    """The statement and its bindings for the heads that match, newest first."""
    where, values = conditions(query, live, None)
    return f"{HEADS} where {where} order by r.created_at desc, r.id desc limit ?", [*values, query.limit]


def conditions(query: Query, live: set[str], claimable_by: str | None) -> tuple[str, list[Any]]:
    """What a row `r` of runs must fulfil to match, and to be claimable by that owner if one is named."""
    where: list[str] = ["true"]
    values: list[Any] = []

    def add(condition: str, *bound: Any) -> None:
        where.append(condition)
        values.extend(bound)

    owned = "coalesce(r.owner in (select value from json_each(?)), 0)"
    owners = msgspec.json.encode(sorted(live)).decode()
    if query.ids is not None:
        add("r.id in (select value from json_each(?))", msgspec.json.encode(query.ids).decode())
    if query.states is not None:
        terms = []
        for status, wants_owner in query.states:
            if wants_owner is None:
                terms.append("r.status = ?")
                values.append(status)
            else:
                terms.append(f"(r.status = ? and {owned} = ?)")
                values.extend((status, owners, int(wants_owner)))
        where.append(f"({' or '.join(terms) or '0'})")
    for condition, several in (
        ("r.flow in (select value from json_each(?))", query.flows),
        ("r.queue in (select value from json_each(?))", query.queues),
        ("r.id not in (select value from json_each(?))", query.but or None),
    ):
        if several is not None:
            add(condition, msgspec.json.encode(several).decode())
    for key, value in query.metadata:
        # A key is compared as text, never read as a path: `$.a` and `x') or 1=1` are just keys. What is damaged may
        # match: whoever looks at it is told.
        add(
            "case when json_valid(r.metadata) then json_type(r.metadata) <> 'object' or "
            "exists (select 1 from json_each(r.metadata) m where m.key = ? and m.type = ? and m.value is ?) "
            "else true end",
            key,
            _json_type(value),
            value,
        )
    for condition, bound in (
        ("r.parent = ?", query.parent),
        ("r.created_at >= ?", query.created_from),
        ("r.created_at < ?", query.created_before),
        ("r.wake_at <= ?", query.due_by),
        ("(r.wake_at is null or r.wake_at <= ?)", query.idle_by),
        ("r.owner = ?", query.owner),
        ("r.expires_at <= ?", query.expired_by),
    ):
        if bound is not None:
            add(condition, bound)
    if query.has_mail is not None:
        counted, kinds = _counted_mail(query)
        add(f"exists (select 1 from inbox i where i.n = r.n and {counted}) = ?", *kinds, int(query.has_mail))
    if query.after is not None:
        add("(r.created_at, r.id) < (?, ?)", *query.after)
    if claimable_by is not None:
        add(f"(r.owner is null or r.owner = ? or not {owned})", claimable_by, owners)
    return " and ".join(where), values


def _counted_mail(query: Query) -> tuple[str, list[str]]:
    """What a row `i` of the inbox must fulfil to count as mail, and what is bound for it."""
    if query.mail_kinds is None:
        return "i.taken = 0", []
    return "i.taken = 0 and i.kind in (select value from json_each(?))", [
        msgspec.json.encode(query.mail_kinds).decode()
    ]


def _json_type(value: str | int | float | bool | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return {int: "integer", float: "real", str: "text"}[type(value)]
