"""What code inside a step belongs to: its run, and what it may ask of the engine.

A ContextVar carries the `Frame` of the code: tasks inherit it, threads get it from the engine or from
`current_run().bind(fn)`.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from hashlib import blake2b
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from holdfast.core.journal import Record
from holdfast.core.retry import RetryPolicy
from holdfast.errors import UsageError
from holdfast.frames import Frame, Place

P = ParamSpec("P")
R = TypeVar("R")


class Suspended(BaseException):
    """Raised in the threads of a `def` body that was let go; let it pass. The body runs again later."""


class Scope(Protocol):
    """What a flow, and the verbs inside its steps, may ask of the engine."""

    loop: asyncio.AbstractEventLoop
    starting: set[asyncio.Future[None]] | None
    """The children on their way that the code has not awaited yet."""

    @property
    def pid(self) -> int:
        """The process in which the run is driven."""
        ...

    def perform(self, step: Any, *args: Any, keeping: Any = ...) -> Awaitable[Any]:
        """What to await for the result of the step's function, wherever it belongs: loop, thread or executor.

        `keeping` says what is stored of it where it is journaled: by default a state or a move.
        """
        ...

    def as_a_call(self, step: Any, args: tuple[Any, ...], keeping: Any, state: Any) -> Coroutine[Any, Any, Any]:
        """The result of the step, journaled as a whole and with its retries."""
        ...

    @property
    def retry(self) -> RetryPolicy:
        """What counts for steps that say nothing of being tried again."""
        ...

    @property
    def memo(self) -> dict[str, Any]:
        """What the flow keeps in memory for as long as the run is live here; nothing of it is stored."""
        ...

    @property
    def skips_saves(self) -> bool:
        """Whether the policy may leave the step unsaved, so that it is taken again after a crash."""
        ...

    def encode(self, value: Any, path: str) -> Any:
        """The value as it is stored. Raises NotStorableError that names the path."""
        ...

    def decode(self, tree: Any, path: str) -> Any:
        """The value of what was stored."""
        ...

    def entry_of(self, place: Place) -> int | None:
        """The entry that holds the result of a call made since the last checkpoint, which the next one may recall."""
        ...

    def record(self, place: Place) -> Record | None:
        """What the log says of the call at that place, which is asked for by this."""
        ...

    def found(self, place: Place) -> int:
        """The entry that holds the result of the call or child at that place, which is asked for by this; 0 without."""
        ...

    def has_message(self, frame: Frame, topic: str, *, new: bool = True) -> bool:
        """Whether `receive(topic)` gives something in a moment there, now (if `new`) or when the body ran before.

        In a step that was finished before, and is only taken again because its save was skipped, nothing is new.
        """
        ...

    def context(self, frame: Frame) -> RunContext:
        """What `current_run()` gives in that frame."""
        ...

    def digest(self, arguments: Any) -> str | None:
        """What tells these arguments from others; None when they cannot be encoded."""
        ...

    def call(
        self,
        place: Place,
        work: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lane: Any = None,
        keeping: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        """The result of the function: found in the journal, or made and journaled.

        With `keeping` it gives what a step gives whose state is the first argument.
        """
        ...

    def lane(self) -> Any:
        """What the calling thread serves to do the work of a call itself."""
        ...

    def begin_here(self, place: Place) -> Frame | None:
        """The frame for a call that the calling thread makes at once; None when the loop has to look it up first."""
        ...

    def given_up_here(self, frame: Frame) -> None:
        """Such a call has no outcome: the run was let go in it."""
        ...

    def conclude(self, place: Place, work: Any, frame: Frame, outcome: tuple[bool, Any]) -> Coroutine[Any, Any, Any]:
        """Journal what came of it, (True, a value) or (False, an error), and give or raise that."""
        ...

    def wait(self, place: Place, body: dict[str, Any], declared: Any, default: Any) -> Coroutine[Any, Any, Any]:
        """What the run waits for: an answer, a message, a moment, a child's result."""
        ...

    def emit(self, frame: Frame, name: str, data: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        """Add a chunk to the run's stream at once; what it gives waits while too many are unwritten."""
        ...

    def child_id(self, place: Place) -> str:
        """The id that a child spawned at that place has by default."""
        ...

    def spawn(self, place: Place, flow: Any, input: Any, id: str) -> Coroutine[Any, Any, None]:
        """Return when the child run exists."""
        ...

    def cancel_child(self, id: str, reason: str | None) -> Coroutine[Any, Any, None]:
        """Cancel a child run, unless it has ended."""
        ...


class RunContext(msgspec.Struct, frozen=True):
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
    call: str | None = None
    """Inside a journaled call: its key."""
    frame: Any = None

    def __repr__(self) -> str:
        return f"<step {self.step!r} of run {self.id}, attempt {self.attempt}>"

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step, or this call, on this branch of the run, and no other.

        Give it to services that accept one, so that an effect cut off by a crash is not repeated there.
        """
        nonce, branch, number = self.place
        inner = "" if self.call is None else f" {self.call}"
        text = f"{self.id} {nonce} {branch} {number} {self.step}{inner}"
        return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def bind(self, fn: Callable[P, R]) -> Callable[P, R]:
        """The function for a thread that your code starts: there it belongs to this run.

        Each call of it is a scope of its own, as a task is: `threading.Thread(target=current_run().bind(work))`.
        """
        here, frame, bound_at = contextvars.copy_context(), self.frame, next(_order)

        def inside(args: Any, kwargs: Any) -> R:
            branch = frame.inside(None)
            branch.holder, branch.threaded, branch.bound = threading.get_ident(), True, bound_at
            _current.set(branch)
            try:
                return fn(*args, **kwargs)
            finally:
                branch.unbound = next(_order)

        @wraps(fn)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return here.copy().run(inside, args, kwargs)

        return bound


_current: ContextVar[Frame | None] = ContextVar("holdfast_run", default=None)
_order = itertools.count()

_elsewhere = False


def leave_for_good() -> None:
    """Say that this process is a worker of an executor: nothing in it belongs to a run."""
    global _elsewhere
    _elsewhere = True


def current_run() -> RunContext:
    """The run that the calling code belongs to. Raises UsageError outside of one."""
    frame = here()
    if frame is None:
        raise UsageError(
            "current_run() works inside a step of a run only. Threads that a step starts belong to it when their "
            "function is wrapped by current_run().bind(...); processes never do: pass them what they need."
        )
    return frame.scope.context(frame)


def here() -> Frame | None:
    """The frame of the calling code: that of its task or thread. None outside of a run."""
    frame = _current.get()
    if frame is None:
        if _elsewhere:
            raise UsageError(
                "this function runs in a process of an executor, where it does not belong to a run: call, ask and the "
                "other verbs work in the process that drives the run. Return what they need, and use them there."
            )
        return None
    if frame.scope.pid != os.getpid():
        raise UsageError("this process was forked from one that drives a run and does not belong to it: no verbs here.")
    holder = holder_here()
    if frame.holder is holder or frame.holder == holder:
        return frame
    branch = frame.inside(None)
    branch.holder = holder
    _current.set(branch)
    return branch


def refuse_in_pool(verb: str) -> None:
    """Raises UsageError in a worker of a process pool, where code that a run sent there would lose its journal."""
    module = sys.modules.get("multiprocessing.process")
    target = getattr(module.current_process(), "_target", None) if module is not None else None
    if getattr(target, "__module__", None) in ("concurrent.futures.process", "multiprocessing.pool"):
        raise UsageError(
            f"{verb}(...) is used in a process of a pool, which belongs to no run: its result would not be kept. Use "
            f"it in the process that drives the run, or call the function itself here."
        )


def holder_here() -> object:
    """The task that runs here, or else the thread."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


def enter(frame: Frame | None, holder: object = None) -> contextvars.Token[Frame | None]:
    """Make this the frame of the calling task or thread (`holder`, if that is known), which holds it from now on."""
    if frame is not None:
        frame.holder = holder or holder_here()
    return _current.set(frame)


def leave(token: contextvars.Token[Frame | None]) -> None:
    """Go back to the frame before."""
    _current.reset(token)
