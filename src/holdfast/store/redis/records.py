"""How heads, entries, mail and commits are written down in Redis, and read back exactly.

A head is a hash of texts; what is None has no field. Numbers are the texts that Python makes of them: a score is a
double, and so is every number in Lua. An entry is one line of JSON and then cursor and body as they are, so that a
person can read it. Where a run stands in lists and queues is kept as text that sorts by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from holdfast.core.record import is_empty
from holdfast.errors import StoreDamagedError
from holdfast.model import Commit, Entry, Head, Mail, Owner, Query, Refusal

_TEXTS = ("status", "owner", "flow", "parent", "queue", "key", "waiting_for")
_WHOLE = ("fence", "attempt", "base", "floor", "priority", "seq")
_TIMES = ("wake_at", "expires_at", "created_at", "started_at", "ended_at", "updated_at")
_JSON = ("metadata", "info", "error", "cursor")

_READ: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, lambda value: value.decode()),
    **dict.fromkeys(_WHOLE, int),
    **dict.fromkeys(_TIMES, float),
    **dict.fromkeys(_JSON, lambda value: value),
}
# The scripts look for status and owner in the first two places, this module for what it needs in the last two.
FIELDS = (*_TEXTS, *_WHOLE, *_TIMES, *_JSON, "mails", "rev")
LIGHT = (*_TEXTS, "priority", "wake_at", "expires_at", "created_at", "metadata", "mails", "rev")

_STORED = [name for name in Head.__struct_fields__ if name in _READ]
_double = Struct(">d").pack
_header = msgspec.json.Decoder(tuple[int, str, int, float, str, int])
_owner_header = msgspec.json.Decoder(tuple[str, str])
_mail_header = msgspec.json.Decoder(tuple[str, str | None])


def pack(value: Any) -> bytes:
    """What `cmsgpack.unpack` of a script takes; bytes in it must be wrapped by `raw`."""
    return msgspec.msgpack.encode(value)


def raw(value: bytes) -> msgspec.Raw:
    """Bytes for `pack`: the library in the server knows strings alone, which may hold any bytes there."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4) + value)


class Found(NamedTuple):
    """A head as it was read: with whether it has mail, and the number of its state."""

    head: Head
    has_mail: bool
    rev: bytes


def text_of(value: Any) -> bytes:
    """The text of a field that is not None."""
    if type(value) is bytes:
        return value
    return (repr(value) if type(value) is float else str(value)).encode()


def sortable(time: float) -> str:
    """16 hex digits that sort as the times do."""
    bits = int.from_bytes(_double(time + 0.0))  # -0.0 is 0.0
    bits = bits ^ (1 << 63) if bits < 1 << 63 else bits ^ ((1 << 64) - 1)
    return f"{bits:016x}"


def place_of(created_at: float, run: str) -> str:
    """Where a run stands in a list, by its bytes."""
    return sortable(created_at) + run


def turn_of(head: Head) -> str:
    """Where a run stands in its queue, by its bytes: the higher priority first, then the older run."""
    return f"{min(max(32767 - head.priority, 0), 65535):04x}{place_of(head.created_at, head.id)}"


def line_in(member: bytes) -> tuple[str, str]:
    """The queue and the flow of a line."""
    size, _, rest = member.partition(b":")
    try:
        return rest[: int(size)].decode(), rest[int(size) + 1 :].decode()
    except ValueError as error:
        raise StoreDamagedError(None, None, f"{member[:80]!a} is no line of a queue") from error


def owner_in(row: Sequence[Any]) -> Owner:
    """The owner in a row of the owners script. Raises StoreDamagedError when it is not what was once written."""
    owner, known, beat_at, alive = row
    try:
        name, info = _owner_header.decode(known)
        return Owner(owner.decode(), name, alive == 1, float(beat_at), info.encode())
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreDamagedError(None, None, f"what is said of owner {owner!a} cannot be read: {error}") from error


def run_in(member: bytes) -> str:
    """The id in a place."""
    return member[16:].decode(errors="replace")


def found_in(row: Sequence[Any], fields: Sequence[str]) -> Found:
    """The head in a row of a script. Raises StoreDamagedError when it is not what was once written."""
    owned, run, values = row
    run = run.decode()
    try:
        given = {
            name: _READ[name](value) for name, value in zip(fields[:-2], values[:-2], strict=True) if value is not None
        }
        return Found(Head(id=run, owned=owned == 1, **given), values[-2] != b"0", values[-1] or b"")
    except (TypeError, ValueError) as error:
        raise StoreDamagedError(run, None, f"its head cannot be read: {error!r:.200}") from error


def entry_text(entry: Entry) -> bytes:
    """An entry as one element of a log."""
    header = (entry.seq, entry.kind, entry.fence, entry.at, entry.check, len(entry.cursor))
    return b"\n".join((msgspec.json.encode(header), entry.cursor, entry.body))


def entry_in(run: str, text: bytes) -> Entry:
    """The entry in an element of the log of that run."""
    try:
        header, _, rest = text.partition(b"\n")
        seq, kind, fence, at, check, size = _header.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreDamagedError(run, None, f"an entry of its log cannot be read: {error}") from error
    return Entry(seq, kind, fence, at, rest[:size], rest[size + 1 :], check)


class Wanted(NamedTuple):
    """What the scripts that choose give of a run."""

    fields: Sequence[str]
    beginnings: list[bytes] | None = None
    """With what mail that counts begins; None where all does."""

    @classmethod
    def by(cls, query: Query, fields: Sequence[str]) -> Wanted:
        """These fields, with the mail that the query counts."""
        kinds = query.mail_kinds if query.has_mail is not None else None
        return cls(fields, None if kinds is None else [_header_beginning(kind) for kind in kinds])

    def packed(self) -> bytes:
        """What the scripts take."""
        beginnings = None if self.beginnings is None else [raw(beginning) for beginning in self.beginnings]
        return pack((self.fields, beginnings))


def _header_beginning(kind: str) -> bytes:
    return b"[" + msgspec.json.encode(kind) + b","


def mail_text(mail: Mail) -> bytes:
    """Mail as it stands in an inbox; the script puts the time before it."""
    return msgspec.json.encode((mail.kind, mail.key)) + b"\n" + mail.body


def mail_in(run: str, flat: Sequence[bytes]) -> tuple[Mail, ...]:
    """The mail in the ids and texts of an inbox, in order."""
    found: list[Mail] = []
    for number, text in zip(flat[::2], flat[1::2], strict=True):
        try:
            at, _, rest = text.partition(b" ")
            header, _, body = rest.partition(b"\n")
            kind, key = _mail_header.decode(header)
            found.append(Mail(kind, body, key, float(at), int(number)))
        except (msgspec.MsgspecError, ValueError) as error:
            raise StoreDamagedError(run, None, f"mail in its inbox cannot be read: {error}") from error
    return tuple(sorted(found, key=lambda mail: mail.id))


def packed_batch(batch: Iterable[Commit]) -> bytes:
    """What the commit script takes for a batch."""
    return pack([_packed(commit) for commit in batch])


def _packed(commit: Commit) -> list[Any]:
    fields = _new_fields(commit.create) if commit.create is not None else {}
    if commit.change is not None:
        fields |= commit.change.fields()
    last = commit.entries[-1] if commit.entries else None
    rebase = commit.rebase
    if last is not None:
        shown = rebase if rebase is not None and rebase.seq == last.seq else last
        fields |= {"seq": last.seq, "cursor": shown.cursor, "updated_at": shown.at}
    flat: list[str | msgspec.Raw] = []
    for name, value in fields.items():
        if value is not None:
            flat += (name, raw(text_of(value)))
    return [
        commit.run,
        commit.owner,
        str(commit.fence),
        commit.create is not None,
        _flaw(commit) or "",
        commit.entries[0].seq if commit.entries else 0,
        [raw(entry_text(entry)) for entry in commit.entries],
        flat,
        [name for name, value in fields.items() if value is None and commit.create is None],
        [str(number) for number in commit.take],
        [] if rebase is None else [rebase.seq, raw(entry_text(rebase)), raw(rebase.cursor), raw(text_of(rebase.at))],
        not (commit.create is None and commit.change is None and commit.rebase is None and not commit.take)
        and not is_empty(commit),
        -1 if commit.heard is None else commit.heard,
    ]


def _new_fields(head: Head) -> dict[str, Any]:
    stored = {name: getattr(head, name) for name in _STORED}
    own = {
        "first": 1,
        "place": place_of(head.created_at, head.id),
        "turn": turn_of(head),
        "light": msgspec.json.encode((head.flow, head.queue, head.key)),
        "mails": 0,
        "last_mail": 0,
        "used": 0,
    }
    return stored | own


def _flaw(commit: Commit) -> Refusal | None:
    """What is wrong with the commit by itself, whatever the run is like."""
    new = commit.create
    if new is not None and (new.owner, new.fence) != (commit.owner, commit.fence):
        return Refusal.STALE
    if new is not None and not commit.entries:
        return Refusal.GAP
    if any(after.seq != before.seq + 1 for before, after in pairwise(commit.entries)):
        return Refusal.GAP
    return None
