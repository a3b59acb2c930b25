"""Reads a file of sealed lines, each line once, and tells a torn tail from damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.store.files.anchors import anchors_before
from holdfast.store.files.disk import Stamp
from holdfast.store.files.lines import Anchor, first_check, unseal
from holdfast.store.files.view import View

Line = tuple[bytes, int, str]
"""What a line holds, its offset, and the checksum before it."""


class BrokenLineError(Exception):
    """A line is not what was written there, and it is not a write that was cut short."""

    seq: int | None = None
    """The first entry that cannot be trusted, where that is not the next one to be read."""

    def __init__(self, file: str, problem: str) -> None:
        self.file = file
        super().__init__(f"{file}: {problem}")


class LineFile:
    """How far this process has read one file of sealed lines."""

    def __init__(self, run: str, name: str) -> None:
        self._run, self.name = run, name
        self.first_check = first_check(run, name)
        self.forget()

    def forget(self) -> None:
        """Begin again with the first line."""
        self.torn = 0  # how many bytes of an unfinished write stand after the good part
        self._stamp: Stamp | None = None
        self.begin_at(0, self.first_check, 0)

    def begin_at(self, offset: int, check: str, last: int) -> None:
        """Read on from the line at `offset`; `check` is the checksum before it, `last` where the line before stands."""
        self.good, self.check = offset, check  # where the good part ends and the next line goes
        self.last = last

    def moved_on(self, to: Stamp, check: str) -> None:
        """Take in a line that this process has just appended."""
        self._stamp, self.torn = to, 0
        self.begin_at(to[1], check, self.good)

    def is_current(self, view: View) -> bool:
        """Whether everything in the file has been read."""
        return self.torn == 0 and view.stamps[self.name] == self._stamp

    def was_replaced(self, view: View) -> bool:
        """Whether what was read before does not count any more."""
        before, now = self._stamp, view.stamps[self.name]
        if before is None or before == now:
            return False
        return now is None or now[0] != before[0] or now[1] <= self.good

    def read_new(self, view: View, take: Callable[[bytes, int, str], None]) -> None:
        """Give each line that was not read yet to `take`: what it holds, its offset, the checksum before it.

        Raises BrokenLineError, after the lines before the broken one were given.
        """
        if (now := view.stamps[self.name]) is None:
            return
        with view.open(self.name) as file:
            file.seek(self.good)
            self.torn = 0
            while rest := max(now[1] - self.good, 0):
                line = file.readline(rest)
                if (found := unseal(line, self.check)) is None:
                    self._judge(line, is_last=len(line) == rest)
                    self.torn = rest
                    break
                take(found[0], self.good, self.check)
                self.begin_at(self.good + len(line), found[1], self.good)
        self._stamp = now

    def _judge(self, line: bytes, *, is_last: bool) -> None:
        """Raises BrokenLineError unless this is a write that did not finish.

        One write is one line, and nothing is written after a torn one before that is cut off. What power
        loss leaves of a write lacks its end or has holes of zeros, which are never in a line of ours.
        """
        if line.endswith(b"\n") and (not is_last or b"\0" not in line):
            raise BrokenLineError(self.name, "a line does not match its checksum")

    def read_from(self, view: View, offset: int, check: str, end: int | None = None) -> Iterator[Line]:
        """The lines from `offset` to `end`, or to where the good part ends; `check` is the checksum before them.

        Raises BrokenLineError.
        """
        with view.open(self.name) as file:
            file.seek(offset)
            while offset < (self.good if end is None else end):
                line = file.readline()
                if (found := unseal(line, check)) is None:
                    raise BrokenLineError(self.name, "a line does not match its checksum")
                yield found[0], offset, check
                offset, check = offset + len(line), found[1]

    def find_anchor(self, view: View, end: int | None = None, seq: int | None = None) -> Anchor | None:
        """The last anchor before offset `end` that stands at `seq` or before."""
        if (now := view.stamps[self.name]) is None:
            return None
        with view.open(self.name) as file:
            found = anchors_before(file, now[1] if end is None else end, self._run)
            return next((anchor for anchor in found if seq is None or anchor.seq <= seq), None)
