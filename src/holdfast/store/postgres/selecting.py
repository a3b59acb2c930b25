"""Which rows a query means.

Values are bound, never written into the text; only the known statuses are, so that the planner sees that an index of
unfinished runs will do.

Metadata is compared in Python: PostgreSQL cannot read every JSON that a run may carry. The server only leaves out what
cannot match, by looking for the key in the text.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.query import matches
from holdfast.model import Head, Query, RunStatus
from holdfast.store.postgres.rows import HEAD_COLUMNS, OWNED

_KNOWN = frozenset(str(status) for status in RunStatus)
NEWEST = "order by r.created_at desc, r.id desc"


class Bound:
    """The values of a statement, in the order of their numbers."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, value: Any, kind: str) -> str:
        """How the statement names this value."""
        self.values.append(value)
        return f"${len(self.values)}::{kind}"


def conditions(query: Query, bound: Bound, *, claimable_by: str | None = None) -> list[str]:
    """What a row of `runs r` must fulfil; with claimable_by also that this owner may claim it."""
    where: list[str] = []
    for name, some in (("id", query.ids), ("flow", query.flows), ("queue", query.queues)):
        if some is not None:
            where.append(f"r.{name} = any ({bound(list(some), 'text[]')})")
    if query.but:
        where.append(f"r.id <> all ({bound(list(query.but), 'text[]')})")
    if query.states is not None:
        where.append(states(query.states, bound))
    for condition, value, kind in (
        ("r.parent =", query.parent, "text"),
        ("r.owner =", query.owner, "text"),
        ("r.created_at >=", query.created_from, "float8"),
        ("r.created_at <", query.created_before, "float8"),
        ("r.wake_at <=", query.due_by, "float8"),
        ("r.expires_at <=", query.expired_by, "float8"),
    ):
        if value is not None:
            where.append(f"{condition} {bound(value, kind)}")
    if query.idle_by is not None:
        where.append(f"(r.wake_at is null or r.wake_at <= {bound(query.idle_by, 'float8')})")
    if query.has_mail is not None:
        where.append(_has_mail(query, bound) if query.has_mail else _has_no_mail(query, bound))
    if query.after is not None:
        at, run = query.after
        where.append(f"(r.created_at, r.id) < ({bound(at, 'float8')}, {bound(run, 'text')})")
    for key, _ in query.metadata:
        where.append(_may_have(key, bound))
    if claimable_by is not None:
        where.append(f"(r.owner is null or r.owner = {bound(claimable_by, 'text')} or not {OWNED})")
    return where or ["true"]


def _has_mail(query: Query, bound: Bound) -> str:
    return f"r.id in (select i.run from inbox i where {_counts(query, bound)})"


def _has_no_mail(query: Query, bound: Bound) -> str:
    return f"not exists (select 1 from inbox i where i.n = r.n and {_counts(query, bound)})"


def _counts(query: Query, bound: Bound) -> str:
    kinds = query.mail_kinds
    return "not i.taken" if kinds is None else f"not i.taken and i.kind = any ({bound(list(kinds), 'text[]')})"


def states(pairs: tuple[tuple[str, bool | None], ...], bound: Bound) -> str:
    """What a row must fulfil to be in one of these states."""

    def named(status: str) -> str:
        return f"'{status}'" if status in _KNOWN else bound(status, "text")

    if not pairs:
        return "false"
    terms = []
    for status, owned in pairs:
        whose = "" if owned is None else f" and {OWNED}" if owned else f" and not {OWNED}"
        terms.append(f"(r.status = {named(status)}{whose})")
    some = ", ".join(named(status) for status, _ in pairs)
    return f"r.status in ({some}) and ({' or '.join(terms)})"


def _may_have(key: str, bound: Bound) -> str:
    # A whole text without a backslash holds the key as it is; any other is read in Python.
    written = msgspec.json.encode(key).decode()
    whole = "left(r.metadata, 1) = '{' and right(r.metadata, 1) = '}'"
    return f"(strpos(r.metadata, {bound(written, 'text')}) > 0 or strpos(r.metadata, '\\') > 0 or not ({whole}))"


def select_heads(query: Query, limit: int) -> tuple[str, list[Any]]:
    """The statement and its values for the heads that match, newest first."""
    bound = Bound()
    where = " and ".join(conditions(query, bound))
    return f"select {HEAD_COLUMNS} from runs r where {where} {NEWEST} limit {bound(limit, 'bigint')}", bound.values


def has_metadata(head: Head, query: Query) -> bool:
    """Whether the metadata of this head, which fits otherwise, is as the query says."""
    return matches(head, Query(metadata=query.metadata))
