"""What is printed: results on stdout, everything else on stderr, nothing that a terminal would obey.

Names, values and errors come out of stores that others may have written to. Whatever is not a
visible character is shown as an escape, so that no stored text moves the cursor, fills the
clipboard or turns the line around.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, RunExistsError, RunFailedError, RunInterruptedError
from holdfast.model import Run, RunStatus

_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_VERBS = re.compile(r"rt\.(run|resume|rewind|fork|pause|cancel)(?:\(['\"]([^'\"]*)['\"]\))?")


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


def out(text: str) -> None:
    """A line on stdout."""
    sys.stdout.write(f"{text}\n")


def say(text: str) -> None:
    """A line on stderr. That nobody reads it any more stops nothing."""
    try:
        sys.stdout.flush()  # what was printed before comes before
    except OSError:
        pass  # it is met again, and reported, when the command ends
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        pass


def prepare() -> None:
    """Let every character be written, whatever the encoding of the terminal or the lack of one."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table in a terminal; elsewhere one line per row, its fields separated by tabs, as they come."""
    if not sys.stdout.isatty():
        for row in rows:
            out("\t".join(shown(field) for field in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(field)) for field in row))
    Console(highlight=False).print(table)


def message_of(error: HoldfastError, run: Run | None = None) -> str:
    """What an error says, in terms of the command line and of how the run stands now."""
    match error:
        case RunFailedError():
            where = f" in step {error.step!r}" if error.step else ""
            return f"run {error.run_id} failed{where}: {error.error}. `holdfast resume {error.run_id}` tries it again."
        case RunInterruptedError() if run is not None and run.status == RunStatus.RUNNING:
            return f"this process no longer waits for run {run.id}, which goes on in another one."
        case RunInterruptedError():
            return f"run {error.run_id} was handed back unfinished. The same command goes on with it."
        case RunExistsError():
            return f"run {error.run_id} exists already. Choose another id."
    return _VERBS.sub(lambda m: f"`holdfast {m[1]}{' ' + m[2] if m[2] else ''}`", str(error))


def error_object(error: HoldfastError, code: int, run: Run | None = None) -> dict[str, Any]:
    """An error as it stands in the output of --json."""
    return {"kind": type(error).__name__, "message": message_of(error, run), "exit_code": int(code)}
