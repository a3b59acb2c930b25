"""The lines of a run's files: JSON that a person can read, each sealed with a checksum.

    {"check":"52b0…","head":{"id":"report-1",…},"entries":[{"seq":1,"kind":"created",…}]}   a new run
    {"check":"9d1f…","entries":[…],"change":{"status":"waiting"},"take":[3]}                 a commit
    {"check":"c07a…","claim":"b0b000000000001","fence":2}                                     a claim
    {"check":"e4f8…","anchor":{"after":"c07a…","at":65731,"head":{…},…},"entries":[…]}        one with an anchor

The checksum covers the line and the checksum before it, and the first one starts from the run's id. So a
line that was changed, moved, dropped, doubled or brought in from another run does not fit. An anchor says
what the lines before it come to, so that the log can be read from there (see `anchors`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import asdict, replace

from holdfast.core.record import Ledger
from holdfast.model import Commit, Entry, Head, HeadChange, Mail

_START, CHECK_END = b'{"check":"', 26
_BYTES = b'{"$bytes":"'  # marks what cannot stand in a line as it is
_DERIVED = frozenset({"owned", "seq", "cursor", "updated_at"})  # the last entry says these
_RAW = frozenset({"metadata", "info", "error", "cursor", "body"})
# Whoever reads the line may be deeper in the stack than we are, and JSON is parsed on the stack.
_ROOM, _ROOM_END = b"[" * 200, b"]" * 200


class HeadText(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A head as it is written."""

    id: str
    flow: str
    status: str
    owner: str | None = None
    fence: int = 0
    attempt: int = 1
    base: int = 1
    floor: int = 1
    wake_at: float | None = None
    expires_at: float | None = None
    parent: str | None = None
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    metadata: Raw = Raw(b"{}")
    info: Raw = Raw(b"{}")
    error: Raw | UnsetType = UNSET
    waiting_for: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None


class ChangeText(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A change of a head as it is written."""

    status: str | UnsetType = UNSET
    owner: str | UnsetType | None = UNSET
    attempt: int | UnsetType = UNSET
    base: int | UnsetType = UNSET
    floor: int | UnsetType = UNSET
    wake_at: float | UnsetType | None = UNSET
    expires_at: float | UnsetType | None = UNSET
    info: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    waiting_for: str | UnsetType | None = UNSET
    started_at: float | UnsetType | None = UNSET
    ended_at: float | UnsetType | None = UNSET


class EntryText(msgspec.Struct):
    """An entry as it is written."""

    seq: int
    kind: str
    fence: int
    at: float
    check: str
    cursor: Raw
    body: Raw


class InboxMark(msgspec.Struct):
    """How the inbox stood, for whoever does not read the lines that took mail from it."""

    last: int
    waiting: list[int]


class Anchor(msgspec.Struct):
    """What the lines before this one come to."""

    after: str
    """The checksum of the line before."""
    at: int
    """Where this line stands in the file, in bytes."""
    line: int
    """Where the line before stands."""
    first: int
    seq: int
    cursor: Raw
    updated_at: float
    head: HeadText
    inbox: InboxMark


class LogLine(msgspec.Struct, omit_defaults=True):
    """One line of a log."""

    anchor: Anchor | None = None  # first, so that it can be found without reading the line
    head: HeadText | None = None
    inbox: InboxMark | None = None
    claim: str | None = None
    fence: int = 0
    entries: list[EntryText] = []
    change: ChangeText | None = None
    take: list[int] = []


class MailLine(msgspec.Struct, omit_defaults=True):
    """One line of an inbox: a piece of mail or, first in a rewritten one, what was known of those before."""

    id: int
    kind: str = ""
    key: str | None = None
    at: float = 0.0
    body: Raw | UnsetType = UNSET
    used: list[str] = []


def first_check(run: str, file: str) -> str:
    """The checksum before the first line of a file."""
    return blake2b(f"{run}/{file}".encode(), digest_size=8).hexdigest()


def seal(line: LogLine | MailLine, before: str) -> tuple[bytes, str]:
    """The line as bytes, and its checksum for the next one."""
    payload = msgspec.json.encode(line)
    check = _digest(before, payload)
    return b"".join((_START, check.encode(), b'",', payload[1:], b"\n")), check


def seal_all(file: Iterable[LogLine | MailLine], before: str) -> bytes:
    """The lines of a whole file as bytes."""
    sealed: list[bytes] = []
    for line in file:
        data, before = seal(line, before)
        sealed.append(data)
    return b"".join(sealed)


def unseal(line: bytes, before: str) -> tuple[bytes, str] | None:
    """What the line holds, and its checksum for the next one; None when it is not what was written there."""
    if not line.startswith(_START) or line[CHECK_END : CHECK_END + 2] != b'",' or line[-1:] != b"\n":
        return None
    payload = b"{" + line[CHECK_END + 2 : -1]
    check = _digest(before, payload)
    return (payload, check) if line[len(_START) : CHECK_END] == check.encode() else None


def begins_with_check(line: bytes, check: str) -> bool:
    """Whether the line says that this is its checksum."""
    return line[:CHECK_END] == _START + check.encode()


def _digest(before: str, payload: bytes) -> str:
    digest = blake2b(before.encode(), digest_size=8)
    digest.update(payload)
    return digest.hexdigest()


def embed(value: bytes, *, nullable: bool = False) -> Raw:
    """JSON to stand in a line as it is; what cannot (it has line breaks, or is no JSON) is wrapped."""
    if _is_plain(value) and not (nullable and value == b"null"):
        return Raw(value)
    return Raw(_BYTES + base64.b64encode(value) + b'"}')


def _is_plain(value: bytes) -> bool:
    if value.startswith(_BYTES) or b"\n" in value or b"\r" in value or b"\0" in value:
        return False
    try:
        if value.count(b"[") + value.count(b"{") > len(_ROOM):
            msgspec.json.decode(_ROOM + value + _ROOM_END, type=Raw)
        return len(msgspec.json.decode(value, type=Raw)) == len(value)  # no space around it, which would be lost
    except (msgspec.DecodeError, RecursionError):
        return False


def unembed(value: Raw) -> bytes:
    """The bytes that `embed` was given."""
    found = bytes(value)
    return base64.b64decode(found[len(_BYTES) : -2]) if found.startswith(_BYTES) else found


def _texts(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: embed(value, nullable=name == "error") if name in _RAW and value is not None else value
        for name, value in fields.items()
    }


def head_text(head: Head) -> HeadText:
    """The head to be written."""
    fields = {name: value for name, value in asdict(head).items() if name not in _DERIVED}
    if fields["error"] is None:
        del fields["error"]
    return HeadText(**_texts(fields))


def head_of(text: HeadText, *, seq: int) -> Head:
    """The head that was written, with the log at `seq`."""
    return Head(seq=seq, **_records(asdict(text)))


def inbox_mark(ledger: Ledger) -> InboxMark:
    """How the inbox stands."""
    return InboxMark(ledger.last_mail, [mail.id for mail in ledger.inbox])


def anchor_text(ledger: Ledger, *, after: str, at: int, line: int) -> Anchor:
    """The anchor to be written at that place."""
    head = ledger.head
    cursor, mark = embed(head.cursor), inbox_mark(ledger)
    return Anchor(after, at, line, ledger.first, head.seq, cursor, head.updated_at, head_text(head), mark)


def anchored_head(anchor: Anchor) -> Head:
    """The head that was written with an anchor."""
    head = head_of(anchor.head, seq=anchor.seq)
    return replace(head, cursor=unembed(anchor.cursor), updated_at=anchor.updated_at)


def change_text(change: HeadChange) -> ChangeText:
    """The change to be written."""
    fields = _texts(change.fields())
    if fields.get("error", UNSET) is None:
        fields["error"] = Raw(b"null")
    return ChangeText(**fields)


def change_of(text: ChangeText) -> HeadChange:
    """The change that was written."""
    return HeadChange(**_records(asdict(text)))


def _records(fields: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: unembed(value) if isinstance(value, Raw) else value
        for name, value in fields.items()
        if value is not UNSET
    }
    if found.get("error") == b"null" and bytes(fields["error"]) == b"null":
        found["error"] = None
    return found


def entry_text(entry: Entry) -> EntryText:
    """The entry to be written."""
    cursor, body = embed(entry.cursor), embed(entry.body)
    return EntryText(entry.seq, entry.kind, entry.fence, entry.at, entry.check, cursor, body)


def entry_of(text: EntryText) -> Entry:
    """The entry that was written."""
    return Entry(text.seq, text.kind, text.fence, text.at, unembed(text.cursor), unembed(text.body), text.check)


def commit_line(commits: Iterable[Commit]) -> LogLine:
    """Accepted commits of one run, one after another, as one line: it is written wholly or not at all."""
    line = LogLine(entries=[], take=[])
    changes: dict[str, Any] = {}
    for commit in commits:
        if commit.create is not None:
            line.head = head_text(commit.create)
        line.entries += [entry_text(entry) for entry in commit.entries]
        line.take += commit.take
        changes |= commit.change.fields() if commit.change else {}
    if changes:
        line.change = change_text(HeadChange(**changes))
    return line


def commit_of(run: str, line: LogLine) -> Commit:
    """What the line does to a ledger, which needs only the last entry."""
    change = change_of(line.change) if line.change else None
    last = tuple(entry_of(text) for text in line.entries[-1:])
    return Commit(run=run, owner="", fence=0, entries=last, change=change, take=tuple(line.take))


def mail_line(mail: Mail) -> MailLine:
    """The mail to be written."""
    return MailLine(mail.id, mail.kind, mail.key, mail.at, embed(mail.body))


def mail_of(line: MailLine) -> Mail | None:
    """The mail that was written; None for the line that sums up what was there before."""
    return None if line.body is UNSET else Mail(line.kind, unembed(line.body), line.key, line.at, line.id)
