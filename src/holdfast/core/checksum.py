"""A checksum over every entry, so that damage is found before anything is built on it."""

from __future__ import annotations

from binascii import crc32

import msgspec

from holdfast.errors import StoreDamagedError
from holdfast.model import Entry

_pack = msgspec.msgpack.Encoder().encode


def seal(run: str, seq: int, kind: str, fence: int, at: float, cursor: bytes, body: bytes) -> Entry:
    """The entry with its checksum: eight hex digits over all of it and where it belongs, so that none passes elsewhere.

    A CRC, as write-ahead logs have: it is there to find damage, and every step passes through it.
    """
    check = crc32(_pack((run, seq, kind, fence, at + 0.0, cursor, body)))  # a clock may give whole numbers
    return Entry(seq, kind, fence, at, cursor, body, check.to_bytes(4, "big").hex())


def verify(run: str, entry: Entry) -> None:
    """Raises StoreDamagedError unless the entry is what was once written at this place."""
    try:
        sealed = seal(run, entry.seq, entry.kind, entry.fence, entry.at, entry.cursor, entry.body)
    except (TypeError, ValueError, OverflowError) as error:  # a text where a number was, and the like
        raise StoreDamagedError(run, entry.seq, f"it cannot be read: {error}") from error
    if sealed.check != entry.check:
        raise StoreDamagedError(run, entry.seq, "its checksum does not match")
