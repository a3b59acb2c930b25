"""A checksum over every entry, so that damage is found before anything is built on it."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from holdfast.errors import StoreDamagedError
from holdfast.model import Entry

_double = Struct(">d").pack


def checksum(run: str, seq: int, kind: str, fence: int, at: float, cursor: bytes, body: bytes) -> str:
    """16 hex digits over all of an entry and where it belongs, so that a moved one does not pass either."""
    place = f"{run}@{seq} {kind} {fence} {len(cursor)} ".encode()
    return blake2b(b"".join((place, _double(at), cursor, body)), digest_size=8).hexdigest()


def seal(run: str, seq: int, kind: str, fence: int, at: float, cursor: bytes, body: bytes) -> Entry:
    """The entry with its checksum."""
    return Entry(seq, kind, fence, at, cursor, body, checksum(run, seq, kind, fence, at, cursor, body))


def verify(run: str, entry: Entry) -> None:
    """Raises StoreDamagedError unless the entry is what was once written at this place."""
    found = checksum(run, entry.seq, entry.kind, entry.fence, entry.at, entry.cursor, entry.body)
    if found != entry.check:
        raise StoreDamagedError(run, entry.seq, "its checksum does not match")
