"""Anchors: lines of a log that also say what all lines before them come to.

Whoever opens a run looks for the last one from the end of the log, and reads from there. An anchor is trusted
when its line passes its checksum, stands where it was written, and follows the line that it says it follows:
one that was changed, torn, moved, doubled or brought in from elsewhere does not. Then an older one is taken, or
the first line, and reading on from there tells what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from holdfast.model import Head
from holdfast.store.files.lines import CHECK_END, Anchor, LogLine, begins_with_check, unseal

EVERY = 64 * 1024  # bytes of log from one to the next
AT_SEGMENT = 16 * 1024  # where a segment begins: whoever takes the run up reads from there
SHARE = 16  # what it takes at most of the log is one part in so many
_BLOCK = 64 * 1024
_BARE = 512  # bytes of an anchor, without what users or their flows may make large

_mark = re.compile(rb'\n\{"check":"[0-9a-f]{16}","anchor":\{"after":"([0-9a-f]{16})",')
_MARK_LENGTH = len(b'\n{"check":"","anchor":{"after":"",') + 2 * 16
_lines = msgspec.json.Decoder(LogLine)


def is_due(grown: int, head: Head, waiting: int, *, at_segment: bool) -> bool:
    """Whether the next line shall bear an anchor when the log has grown by so many bytes since the last one."""
    if grown < AT_SEGMENT:
        return False
    size = _BARE + len(head.metadata) + len(head.info) + len(head.cursor) + len(head.error or b"") + 8 * waiting
    return grown >= max(AT_SEGMENT if at_segment else EVERY, SHARE * size)


def anchors_before(file: BinaryIO, end: int, run: str) -> Iterator[Anchor]:
    """The anchors that can be trusted in the log of `run` before offset `end`, the last one first."""
    rest = b""
    while end > 0:
        start = max(end - _BLOCK, 0)
        file.seek(start)
        block = file.read(end - start) + rest
        for match in reversed(list(_mark.finditer(block))):
            if (found := _trusted(file, start + match.start() + 1, match[1].decode(), run)) is not None:
                yield found
        end, rest = start, block[: _MARK_LENGTH - 1]


def _trusted(file: BinaryIO, at: int, after: str, run: str) -> Anchor | None:
    file.seek(at)
    if (found := unseal(file.readline(), after)) is None:
        return None
    try:
        anchor = _lines.decode(found[0]).anchor
    except (msgspec.MsgspecError, RecursionError):
        return None
    if anchor is None or anchor.at != at or anchor.head.id != run or not 0 <= anchor.line < at:
        return None
    file.seek(anchor.line)
    return anchor if begins_with_check(file.read(CHECK_END), after) else None
