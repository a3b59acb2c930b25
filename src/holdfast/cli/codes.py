"""The exit codes: one table for the commands, the help and the documentation."""

from __future__ import annotations

from enum import IntEnum

from holdfast.errors import (
    AnsweredError,
    AnswerError,
    FlowNotRegisteredError,
    HoldfastError,
    InputChangedError,
    NoQuestionError,
    NotACheckpointError,
    RunCancelledError,
    RunError,
    RunExistsError,
    RunFailedError,
    RunPausedError,
    RunWaitingError,
    StateError,
    StepMissingError,
    StoreError,
    UsageError,
    WrongFlowError,
)


class Exit(IntEnum):
    """How a command ended, for the script that called it."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PAUSED = 3
    WAITING = 4
    CANCELLED = 5
    REFUSED = 6
    STORE = 7
    OUTPUT = 8
    BUG = 70
    INTERRUPTED = 130
    PIPE = 141
    TERMINATED = 143


MEANING: dict[Exit, str] = {
    Exit.OK: "done; for a run: completed",
    Exit.FAILED: "the run failed (for `demo`: it did not show what it should)",
    Exit.USAGE: "wrong arguments, an id that cannot be, an app that cannot be loaded",
    Exit.PAUSED: "the run is paused",
    Exit.WAITING: "the run waits for something from outside",
    Exit.CANCELLED: "the run was cancelled",
    Exit.REFUSED: "refused, nothing changed: not found, owned by a live process, not allowed by its status, an answer "
    "or a program that does not fit",
    Exit.STORE: "the store is not there, cannot be read or written, or is damaged",
    Exit.OUTPUT: "the output could not be written; what was asked for was done",
    Exit.BUG: "a bug in Holdfast; HOLDFAST_DEBUG=1 shows the traceback",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; the run was handed back and the same command goes on",
    Exit.PIPE: "whoever read the output stopped reading, as `head -1` does",
    Exit.TERMINATED: "ended by SIGTERM; the run was handed back and the same command goes on",
}

# The first that fits counts.
_BY_ERROR: tuple[tuple[type[HoldfastError], Exit], ...] = (
    (RunFailedError, Exit.FAILED),
    (RunPausedError, Exit.PAUSED),
    (RunWaitingError, Exit.WAITING),
    (RunCancelledError, Exit.CANCELLED),
    (RunError, Exit.REFUSED),
    (FlowNotRegisteredError, Exit.REFUSED),
    (StepMissingError, Exit.REFUSED),
    (WrongFlowError, Exit.REFUSED),
    (InputChangedError, Exit.REFUSED),
    (RunExistsError, Exit.REFUSED),
    (NotACheckpointError, Exit.REFUSED),
    (AnswerError, Exit.REFUSED),
    (AnsweredError, Exit.REFUSED),
    (NoQuestionError, Exit.REFUSED),
    (StateError, Exit.REFUSED),
    (UsageError, Exit.USAGE),
    (StoreError, Exit.STORE),
)


def code_of(error: HoldfastError) -> Exit:
    """The exit code that stands for an error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.BUG)


def table() -> str:
    """The exit codes as lines for the help."""
    return "\n".join(f"  {code.value:>3}  {text}" for code, text in MEANING.items())
