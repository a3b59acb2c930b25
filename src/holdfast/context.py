"""What code inside a step can know of the run it belongs to."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import datetime
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from holdfast.errors import UsageError


class Scope(Protocol):
    """What a flow may ask of the engine while it advances."""

    async def perform(self, step: Any, *args: Any) -> Any:
        """The result of calling the step's function, wherever it belongs: loop, thread or executor."""
        ...


class RunContext(msgspec.Struct, frozen=True, gc=False):
    """The run that the current code belongs to."""

    id: str
    flow: str
    step: str
    attempt: int
    """1 for the first attempt of the step, one more for each that failed or was cut off by a crash."""
    metadata: dict[str, Any]
    deadline: datetime | None
    """When the attempt times out; None without a timeout."""
    place: tuple[str, int, int]
    """What tells this step of this branch from all others; the idempotency key is made of it."""

    def __repr__(self) -> str:
        return f"<step {self.step!r} of run {self.id}, attempt {self.attempt}>"

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step on this branch of the run, and no other.

        Give it to services that accept one, so that an effect cut off by a crash is not repeated there.
        """
        nonce, branch, number = self.place
        return blake2b(f"{self.id} {nonce} {branch} {number} {self.step}".encode(), digest_size=16).hexdigest()


_current: ContextVar[RunContext | None] = ContextVar("holdfast_run", default=None)


def current_run() -> RunContext:
    """The run that the calling code belongs to. Raises UsageError outside of one."""
    context = _current.get()
    if context is None:
        raise UsageError(
            "current_run() works inside a step of a run only. Threads and processes that a step starts "
            "do not belong to it: pass them what they need."
        )
    return context


def set_current(context: RunContext | None) -> None:
    """Make this the run of the calling task from now on."""
    _current.set(context)
