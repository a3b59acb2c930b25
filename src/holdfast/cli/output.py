"""What is printed: results on stdout, everything else on stderr, nothing that a terminal would obey.

Names, values and errors come out of stores that others may have written to. Whatever is not a
visible character is shown as an escape, so that no stored text moves the cursor, fills the
clipboard or turns the line around.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

_LEAST, _GAP = 8, 2  # how wide a field is left that is cropped or folded; the space between two
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def shown(value: object) -> str:
    """The text on one line, with everything invisible as an escape."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(char) if unicodedata.category(char) in _INVISIBLE else char for char in text)


def _escaped(char: str) -> str:
    return ascii(char)[1:-1]


def as_json(value: Any) -> str:
    """One line of JSON in ASCII, for programs."""
    return json.dumps(msgspec.to_builtins(value)).replace("\x7f", "\\u007f")


def pretty_json(value: Any) -> str:
    """JSON for people: indented, in their script, and still JSON where a character is escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "".join(
        json.dumps(char)[1:-1] if char != "\n" and unicodedata.category(char) in _INVISIBLE else char for char in text
    ).replace("\x7f", "\\u007f")


class OutputError(Exception):
    """A result could not be printed. Its cause is what the stream said."""


class _Pipe(io.FileIO):
    """A pipe to whoever reads what is printed. That nobody does is not raised in who prints: that may be a step."""

    unread = False
    told: Callable[[], object] = staticmethod(lambda: None)

    def write(self, data: Any) -> int:
        """Write it, or lose it."""
        try:
            return super().write(data)
        except BrokenPipeError:
            if not self.unread:
                self.unread = True
                self.told()
            return memoryview(data).nbytes


_stdout: _Pipe | None = None


def is_unread() -> bool:
    """Whether something was printed on stdout that nobody reads any more."""
    return _stdout is not None and _stdout.unread


@contextmanager
def when_unread(do: Callable[[], None]) -> Iterator[None]:
    """While inside, the running loop does this once nobody reads any more what is printed on stdout."""
    if _stdout is None:
        yield
        return
    loop, usual = asyncio.get_running_loop(), _stdout.told

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it the run
            loop.call_soon_threadsafe(do)

    _stdout.told = tell
    try:
        yield
    finally:
        _stdout.told = usual


@contextmanager
def printing() -> Iterator[None]:
    """While inside, an OSError is one of our own streams. Raises OutputError; elsewhere it means something else."""
    try:
        yield
    except OSError as error:
        raise OutputError(error.strerror or str(error)) from error


class _Nowhere(io.TextIOWrapper):
    """In the place of a stream that this process was started without."""

    lost = False
    """Whether a result was printed there. What steps print is nobody's result."""


def out(text: str) -> None:
    """A line on stdout. Raises OutputError."""
    with printing():
        sys.stdout.write(f"{text}\n")
        _check_read()
    if isinstance(sys.stdout, _Nowhere):
        sys.stdout.lost = True


def say(text: str) -> None:
    """A line on stderr. That nobody reads it any more, or that a step has closed it, stops nothing."""
    try:
        sys.stdout.flush()  # what was printed before comes before
    except (OSError, ValueError):
        pass  # it is met again, and reported, when the command ends
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def prepare() -> None:
    """Have all three streams, and let every character be written, whatever the encoding of the terminal."""
    # Before anything else is opened: a database must not get the number of a stream, which others write to. Each
    # gets the lowest number that is free, so that the order gives it its own.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, _stand_in(name))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    global _stdout
    sys.stdout, _stdout = _lenient(sys.stdout)
    sys.stderr, _ = _lenient(sys.stderr)


def _lenient(stream: Any) -> tuple[Any, _Pipe | None]:
    """The stream; in the place of a pipe or a socket one that fails nobody when its reader has gone."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return stream, None  # one of a test, or of a program around us
    if type(stream) is not io.TextIOWrapper or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return stream, None
    raw = _Pipe(stream.fileno(), "wb", closefd=False)
    buffer = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)  # python -u has no buffer
    settings = {name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering", "write_through")}
    return io.TextIOWrapper(buffer, **settings), raw


def _stand_in(name: str) -> io.TextIOWrapper:
    # For writing, stdin too: reading fails there, because an input that is missing is not an empty one.
    number = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(number, True)  # as a stream is
    if name == "stdin":
        return open(number, encoding="utf-8", closefd=False)
    return _Nowhere(open(number, "wb", closefd=False), encoding="utf-8")


def flush() -> None:
    """Let others see what was printed so far. Raises OutputError."""
    with printing():
        sys.stdout.flush()
        _check_read()


def _check_read() -> None:
    if is_unread():
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def finish() -> None:
    """Write what is left of the output. Raises OutputError when it, or what came before, could not be written."""
    flush()
    with printing():
        if isinstance(sys.stdout, _Nowhere) and sys.stdout.lost:
            raise OSError(errno.EBADF, "stdout is closed")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    crop: Sequence[str] = (),
    fold: str = "",
    head: bool = True,
) -> None:
    """A table in a terminal; elsewhere one line per row, its fields separated by tabs, as they come.

    What is too wide for the terminal is cropped in the columns `crop` and folded in the column `fold`; then the last
    columns are left out, but never the first two. Without `head` the names of the columns are for a terminal only.
    """
    if sys.stdout.isatty():
        _draw_table(columns, [[shown(field) for field in row] for row in rows], crop, fold)
        return
    if head:
        out("\t".join(columns))
    for row in rows:
        out("\t".join(shown(field) for field in row))


def _draw_table(columns: Sequence[str], rows: list[list[str]], crop: Sequence[str], fold: str) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widths = [max(map(cell_len, fields)) for fields in zip(columns, *rows, strict=True)]
    narrow = (*crop, fold)
    least = [min(width, _LEAST) if name in narrow else width for name, width in zip(columns, widths, strict=True)]
    while len(least) > 2 and sum(least) + _GAP * len(least) > console.width:
        least.pop()
    console.width = max(console.width, sum(least) + _GAP * len(least))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(columns, least, strict=False):
        table.add_column(name, min_width=width, no_wrap=name not in narrow, overflow="fold")
    for row in rows:
        fields = zip(columns, row[: len(least)], strict=False)
        table.add_row(*(Text(f) if name == fold else Text(f, no_wrap=True, overflow="ellipsis") for name, f in fields))
    with printing():
        console.print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one of each on a line."""
    for name, value in fields:
        out(f"{shown(name):<10} {shown(value)}")


def time_of(moment: datetime | float | None) -> str:
    """A moment as UTC, to the second."""
    if moment is None:
        return "-"
    at = moment if isinstance(moment, datetime) else datetime.fromtimestamp(moment, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S")


def debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("HOLDFAST_DEBUG", "") not in ("", "0")


def say_trace(trace: str) -> None:
    """A traceback on stderr, where it is wanted."""
    if debugging():
        for line in trace.splitlines():
            say(shown(line))
