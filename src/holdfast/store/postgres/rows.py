"""How rows become records, and records rows."""

from __future__ import annotations

from typing import Any

from holdfast.model import Entry, Head, Mail
from holdfast.store.columns import STORED

INTS = frozenset({"fence", "attempt", "base", "floor", "priority"})
FLOATS = frozenset({"wake_at", "expires_at", "created_at", "started_at", "ended_at"})
_FROM_LAST_ENTRY = ("seq", "cursor", "updated_at")
_NAMES = (*STORED, *_FROM_LAST_ENTRY, "owned")
_JSON = ("metadata", "info", "cursor")

LIVE = "array(select o.id from owners o where o.lease_until > now())"
OWNED = f"coalesce(r.owner = any({LIVE}), false)"
HEAD_COLUMNS = ", ".join(f"r.{name}" for name in (*STORED, *_FROM_LAST_ENTRY)) + f", {OWNED}"
ENTRY_COLUMNS = 'e.seq, e.kind, e.fence, e.at, e.cursor, e.body, e."check"'
MAIL_COLUMNS = "i.kind, i.body, i.key, i.at, i.id"


def head_from(row: tuple[Any, ...]) -> Head:
    """The head in a row of HEAD_COLUMNS."""
    fields = dict(zip(_NAMES, row, strict=True))
    for name in _JSON:
        fields[name] = fields[name].encode()
    if fields["error"] is not None:
        fields["error"] = fields["error"].encode()
    return Head(**fields)


def entry_from(row: tuple[Any, ...]) -> Entry:
    """The entry in a row of ENTRY_COLUMNS."""
    seq, kind, fence, at, cursor, body, check = row
    return Entry(seq, kind, fence, at, cursor.encode(), body.encode(), check)


def mail_from(row: tuple[Any, ...]) -> Mail:
    """The mail in a row of MAIL_COLUMNS."""
    kind, body, key, at, mail_id = row
    return Mail(kind, body.encode(), key, at, mail_id)
