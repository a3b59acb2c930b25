"""How long bodies are laid out so that the pages of the log are full.

SQLite puts a row that does not fit into what is left of the log's last page on the next one, and leaves
the rest of that page empty: a turn of a conversation lost up to half of what it holds. So the beginning
of a long body goes into a row of its own that fills the page, and the entry follows with the rest.

What is left of a page is reckoned from what was written, by the rules of SQLite's file format. Others may
write too: then a few pages are less full, until one begins that this process takes to begin as well.
Nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model import Entry

PAGE_BYTES = 1024

_ROOM = PAGE_BYTES - 8  # what a page holds beside its header
_WHOLE = PAGE_BYTES - 35  # a row up to this size lies on its page wholly
_LEAST = (PAGE_BYTES - 12) * 32 // 255 - 23  # of a longer one, at least this much does
_OVERFLOW = PAGE_BYTES - 4  # what each page beside holds of it
_ROW = 7  # what a row takes beside its columns: where it lies, how long it is, which one it is
_COLUMNS = 33  # the columns of an entry beside kind, cursor and body, and what tells them apart
_OF_ITS_OWN = 19 + _ROW  # what a row takes that holds nothing but the beginning of a body

_WORTH_FILLING = 2 * _OF_ITS_OWN
_LONG = PAGE_BYTES // 2
_SHORT, _MANY = PAGE_BYTES * 3 // 8, 32


class Room:
    """What is left of the log's last page, as far as this process knows."""

    __slots__ = ("_has_long", "_left")

    def __init__(self) -> None:
        self._left = 0
        self._has_long = False
        """Whether a part of a long entry lies on the page."""

    def lay_out(self, entries: Sequence[Entry]) -> list[int]:
        """Where to split the bodies of these entries, which are written now; 0 where one stays whole."""
        if len(entries) >= _MANY and max([len(entry.body) for entry in entries]) < _SHORT:
            # They fill their pages by themselves, and what is left of the last one is not worth reckoning for so many.
            self._left, self._has_long = 0, False
            return [0] * len(entries)
        return [self._take(entry) for entry in entries]

    def _take(self, entry: Entry) -> int:
        size = _COLUMNS + len(entry.kind) + len(entry.cursor) + len(entry.body)
        if size < _LONG and size + _ROW <= self._left:  # most entries
            self._left -= size + _ROW
            return 0
        at = self._split(size, entry.body)
        taken = _on_page(size - at)
        if at or taken > self._left:
            self._left, self._has_long = _ROOM, False
        self._left -= taken
        self._has_long = self._has_long or size >= _LONG
        return at

    def _split(self, size: int, body: bytes) -> int:
        if self._left < _WORTH_FILLING or (size < _LONG and not self._has_long):
            return 0  # short entries fill a page well enough by themselves, and a second row takes time
        if _on_page(size) <= self._left and _left_beside(size) < _WORTH_FILLING:
            return 0
        at = min(self._left - _OF_ITS_OWN, len(body))
        while at < len(body) and body[at] & 0xC0 == 0x80:  # never inside a character
            at -= 1
        return at


def _on_page(size: int) -> int:
    """What a row with so many bytes in its columns takes of the page that it lies on."""
    if size <= _WHOLE:
        return size + _ROW
    rest = _LEAST + (size - _LEAST) % _OVERFLOW
    return (rest if rest <= _WHOLE else _LEAST) + _ROW + 4


def _left_beside(size: int) -> int:
    """What it leaves empty of the last page beside: nothing, unless the rest is too much for its own page."""
    rest = (size - _LEAST) % _OVERFLOW
    return _OVERFLOW - rest if size > _WHOLE and _LEAST + rest > _WHOLE else 0
