"""What an error says, in terms of the command line. What it suggests can be typed as it is printed."""

from __future__ import annotations

import os
import re
import shlex
import traceback
from collections.abc import Sequence
from typing import Any

import holdfast
from holdfast.cli.loading import Program
from holdfast.errors import (
    FlowNotRegisteredError,
    HoldfastError,
    InputChangedError,
    NoQuestionError,
    RunExistsError,
    RunFailedError,
    RunInterruptedError,
    RunOwnedError,
)
from holdfast.model import Run, RunStatus

_VERBS = re.compile(r"rt\.(run|resume|rewind|fork|pause|cancel|delete|send)\b(?:\(['\"]([^'\"]*)['\"]\))?")
_LOOKING = re.compile(r"`holdfast ((?:ls|show|doctor|asks)\b[^`]*)`")
_FRAME = re.compile(r'^[ |]*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_OURS = os.path.dirname(os.path.abspath(holdfast.__file__)) + os.sep
_LIBRARY = re.compile(r"/lib/python3[.0-9]*/|^<")


class Typed:
    """What the user has typed, as far as a suggestion has to repeat it."""

    def __init__(self) -> None:
        self.store: str | None = None
        self.program: Program | None = None

    def command(self, verb: str, ref: str, flow: str | None = None) -> str:
        """In quotes, a command for the run or checkpoint; `flow` is the name of the run's flow, where it is known."""
        if verb == "run":
            return self.quoted(verb, self._place(flow), options=("--id", ref))
        if verb == "send":
            return self.quoted(verb, ref, "TOPIC", "VALUE")
        app = ("--app", "FILE" if self.program is None else self.program.target)
        if verb in ("rewind", "fork") and "@" not in ref:
            ref = f"{ref}@SEQ"
        return self.quoted(verb, ref, options=app if verb in ("resume", "rewind") else ())

    def quoted(self, verb: str, *arguments: str, options: Sequence[str] = ()) -> str:
        """A command line as it stands in a text."""
        return f"`{self.line(verb, *arguments, options=options)}`"

    def line(self, verb: str, *arguments: str, options: Sequence[str] = ()) -> str:
        """A command line as it is typed. What begins with - is kept from being taken for an option."""
        if any(argument.startswith("-") for argument in arguments):
            words = shlex.join(["holdfast", verb, *options]) + self.in_store()
            return f"{words} -- {shlex.join(arguments)}"
        return shlex.join(["holdfast", verb, *arguments, *options]) + self.in_store()

    def in_store(self) -> str:
        """The end of a command line that names the store, if it has to. A password is for nobody's screen."""
        if self.store is None:
            return ""
        return f" --store {'URL' if '@' in self.store else shlex.quote(self.store)}"

    def _place(self, flow: str | None) -> str:
        if self.program is None:
            return "FILE:FLOW"
        names = [name for name, its in self.program.flows.items() if flow is None or its.name == flow]
        return f"{self.program.target}:{names[0] if len(names) == 1 or (names and flow) else 'FLOW'}"


def message_of(error: HoldfastError, typed: Typed, run: Run | None = None, trace: str | None = None) -> str:
    """What an error says, given how the run stands now and the trace of the step that failed."""
    flow = None if run is None else run.flow
    match error:
        case RunFailedError():
            step = f" in step {error.step!r}" if error.step else ""
            place = place_of(trace)
            at = f" ({place})" if place else ""
            again = typed.command("resume", error.run_id)
            return f"run {error.run_id} failed{step}: {error.error}{at}. {again} tries it again."
        case RunInterruptedError() if run is not None and run.status == RunStatus.RUNNING:
            return f"this process no longer waits for run {run.id}, which goes on in another one."
        case RunInterruptedError():
            again = typed.command("resume", error.run_id)
            return f"run {error.run_id} was handed back unfinished. {again} goes on with it."
        case RunExistsError():
            return f"run {error.run_id} exists already. Choose another id."
        case InputChangedError():
            return (
                f"run {error.run_id} exists with another input, so nothing was run. Use another id for the new "
                f"input, or leave the input out to go on with the stored one: under this very id, for under one that "
                f"does not exist that begins a new run."
            )
        case RunOwnedError():
            join, pause, cancel = (typed.command(verb, error.run_id, flow) for verb in ("run", "pause", "cancel"))
            return (
                f"run {error.run_id} is live in another process. {join} joins it and gives its result; "
                f"{pause} and {cancel} reach it from here."
            )
        case NoQuestionError() if error.ask is None and error.open_asks:
            options = [("--ask", ask) for ask in error.open_asks[:3]]
            which = [typed.quoted("answer", error.run_id, "VALUE", options=option) for option in options]
            asks = typed.quoted("asks", error.run_id)
            return f"run {error.run_id} has several questions open; say which: {', '.join(which)}. {asks} shows them."
        case FlowNotRegisteredError():
            return f"run {error.run_id} belongs to flow {error.flow!r}{_who_has(error.flow, typed)}"
    named = getattr(error, "run_id", None) or "RUN"
    text = _LOOKING.sub(lambda found: f"`holdfast {found[1]}{typed.in_store()}`", str(error))
    return _VERBS.sub(lambda found: typed.command(found[1], found[2] or named, flow), text)


def _who_has(flow: str, typed: Typed) -> str:
    program = typed.program
    if program is None:
        return ": --app FILE names the program that has it."
    names = [its.name for its in program.flows.values()]
    if flow in names:
        return f", another one of {program.target}: --app {shlex.quote(program.target)} finds it."
    return f", and {program.target} has no flow of that name (it has: {', '.join(dict.fromkeys(names))})."


def error_object(error: HoldfastError, code: int, message: str) -> dict[str, Any]:
    """An error as it stands in the output of --json."""
    return {"kind": type(error).__name__, "message": message, "exit_code": int(code)}


def trace_of(error: BaseException) -> str:
    """The traceback of an error, as it is stored of a step that failed."""
    return "".join(traceback.format_exception(error))


def place_of(trace: object) -> str | None:
    """Where in the user's program a step failed, by its trace: `app.py:6 in search`.

    That is the last frame outside of Holdfast, and outside of every library if there is one.
    """
    frames = [found for found in _FRAME.findall(trace if isinstance(trace, str) else "") if not _ours(found[0])]
    own = [found for found in frames if not _LIBRARY.search(found[0])]
    if not frames:
        return None
    path, line, name = (own or frames)[-1]
    here = os.path.join(os.getcwd(), "")
    return f"{path.removeprefix(here)}:{line} in {name}"


def _ours(path: str) -> bool:
    return path.startswith(_OURS) or "/site-packages/holdfast/" in path
