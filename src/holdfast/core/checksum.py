"""A checksum over every entry, so that damage is found before anything is built on it."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from struct import error as struct_error

from holdfast.errors import StoreDamagedError
from holdfast.model import Entry

_double = Struct(">d").pack


def seal(run: str, seq: int, kind: str, fence: int, at: float, cursor: bytes, body: bytes) -> Entry:
    """The entry with its checksum: 16 hex digits over all of it and where it belongs, so that none passes elsewhere."""
    place = b"%b@%d %b %d %d " % (run.encode(), seq, kind.encode(), fence, len(cursor))
    check = blake2b(b"".join((place, _double(at), cursor, body)), digest_size=8).hexdigest()
    return Entry(seq, kind, fence, at, cursor, body, check)


def verify(run: str, entry: Entry) -> None:
    """Raises StoreDamagedError unless the entry is what was once written at this place."""
    try:
        sealed = seal(run, entry.seq, entry.kind, entry.fence, entry.at, entry.cursor, entry.body)
    except (TypeError, struct_error) as error:  # a text where a number was, and the like
        raise StoreDamagedError(run, entry.seq, f"it cannot be read: {error}") from error
    if sealed.check != entry.check:
        raise StoreDamagedError(run, entry.seq, "its checksum does not match")
