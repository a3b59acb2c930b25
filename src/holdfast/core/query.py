"""Which heads a query means, for the stores that filter in Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.record import may_claim
from holdfast.core.transitions import ENDED
from holdfast.core.turns import in_turn
from holdfast.model import Head, Mail, Query

Mailed = tuple[Head, Sequence[Mail]]
"""A head with what is in the inbox of its run."""


def counts(inbox: Sequence[Mail], query: Query) -> bool:
    """Whether a run with this inbox has mail, as the query means it."""
    return bool(inbox) if query.mail_kinds is None else any(mail.kind in query.mail_kinds for mail in inbox)


def matches(head: Head, query: Query, has_mail: bool = False) -> bool:
    """Whether every given field of the query fits this head, which has mail as `counts` says.

    `head.owned` must be filled in.
    """
    if query.ids is not None and head.id not in query.ids:
        return False
    if query.flows is not None and head.flow not in query.flows:
        return False
    if query.parent is not None and head.parent != query.parent:
        return False
    if query.has_mail is not None and has_mail != query.has_mail:
        return False
    if query.queues is not None and head.queue not in query.queues:
        return False
    if head.id in query.but or (query.owner is not None and head.owner != query.owner):
        return False
    return (
        (query.states is None or _fits_states(head, query.states))
        and _fits_times(head, query)
        and (not query.metadata or _fits_metadata(head, query))
    )


def _fits_states(head: Head, states: tuple[tuple[str, bool | None], ...]) -> bool:
    return any(head.status == status and owned in (None, head.owned) for status, owned in states)


def _fits_times(head: Head, query: Query) -> bool:
    if query.created_from is not None and head.created_at < query.created_from:
        return False
    if query.created_before is not None and head.created_at >= query.created_before:
        return False
    if query.due_by is not None and (head.wake_at is None or head.wake_at > query.due_by):
        return False
    if query.idle_by is not None and head.wake_at is not None and head.wake_at > query.idle_by:
        return False
    if query.expired_by is not None and (head.expires_at is None or head.expires_at > query.expired_by):
        return False
    return query.after is None or place(head) < query.after


def _fits_metadata(head: Head, query: Query) -> bool:
    try:
        stored = msgspec.json.decode(head.metadata, type=dict)
    except ValueError:
        return True  # nobody knows any more: whoever looks at it is told that it is damaged
    # 1 == True == 1.0 in Python, so the type is compared too; a missing key is not a null.
    return all(
        key in stored and type(stored[key]) is type(value) and stored[key] == value for key, value in query.metadata
    )


def place(head: Head) -> tuple[float, str]:
    """Where a run stands in a list, which is sorted by this in descending order; `Query.after` is one."""
    return head.created_at, head.id


def select(heads: Iterable[Mailed], query: Query) -> list[Head]:
    """The page that the query means of these, newest first."""
    found = [head for head, inbox in heads if matches(head, query, counts(inbox, query))]
    found.sort(key=place, reverse=True)
    return found[: max(query.limit, 0)]


def claimable(heads: Iterable[Mailed], query: Query, owner: str) -> list[Head]:
    """Those of these that `owner` gets when it claims with this query, in order.

    With `query.in_turn` all runs of the store are to be given: those of live owners count against the limits. Runs
    that have ended get no turn.
    """
    if not query.in_turn:
        return select(((head, inbox) for head, inbox in heads if may_claim(head, owner)), query)
    everybody = [(head, inbox) for head, inbox in heads if head.status not in ENDED]
    free = [head for head, inbox in everybody if may_claim(head, owner) and matches(head, query, counts(inbox, query))]
    under_way = (head for head, _ in everybody if head.owned)
    return in_turn(free, under_way, query.limits, query.limit)
