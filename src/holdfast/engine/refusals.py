"""What a user is told of a run that does not allow what was asked, or that gives no result."""

from __future__ import annotations

import msgspec

from holdfast.core.transitions import HINTS, Situation, situation
from holdfast.engine.info import Ended
from holdfast.errors import (
    HoldfastError,
    RunCancelledError,
    RunFailedError,
    RunInterruptedError,
    RunOwnedError,
    RunPausedError,
    RunWaitingError,
    StoreDamagedError,
    VerbRefusedError,
)
from holdfast.model import Head


def refused(verb: str, head: Head) -> HoldfastError:
    """Why the run's situation does not allow the verb."""
    where = situation(head)
    if where is Situation.LIVE and verb in ("resume", "rewind"):
        return RunOwnedError(head.id, head.owner)
    return VerbRefusedError(head.id, verb, where, HINTS.get((verb, where), ""))


def ended_error(head: Head) -> HoldfastError:
    """What a run that gives no result has come to. Raises StoreDamagedError when that cannot be read."""
    try:
        ended = Ended.of(head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamagedError(head.id, None, f"how it ended cannot be read: {error}") from error
    match situation(head):
        case Situation.PAUSED:
            return RunPausedError(head.id)
        case Situation.WAITING:
            return RunWaitingError(head.id, head.waiting_for)
        case Situation.CANCELLED:
            return RunCancelledError(head.id, ended.error)
        case Situation.FAILED:
            return RunFailedError(head.id, ended.step, ended.error or "unknown")
        case _:
            return RunInterruptedError(head.id)
