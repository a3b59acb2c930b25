"""Frames: stretches of code whose verbs are told apart, so that what each did is found again.

A task that finds itself in the frame of another opens a branch of its own with its first verb, so that
gathered branches never take each other's results.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from holdfast.beside import tasks_beside
from holdfast.core.ids import storable
from holdfast.core.keys import Names, branch_name
from holdfast.errors import IdenticalBranchError, KeyReusedError, UsageError, with_key

if TYPE_CHECKING:
    from holdfast.context import Scope

_MANY = 256
"""Tasks at once in one scope up to which it is worth knowing which of them overlap."""
_naming = threading.Lock()


class Place(msgspec.Struct, frozen=True):
    """Where a verb was used: what it did is found again by `key`."""

    frame: Frame
    key: str
    name: str
    args: str | None


class Frame(msgspec.Struct, eq=False):
    """A stretch of code that makes its calls one after the other: a body, a task in it, a call's function."""

    scope: Scope
    path: str | None
    parent: Frame | None = None
    call: str | None = None
    """The key of the journaled call whose function it is, or of the one that this is part of."""
    closed: bool = False
    """Whether the attempt of its call is over, whatever its code still does."""
    holder: object = None
    """The task or thread that runs it."""
    names: Names | None = None
    parked: int = 0
    """How many waits are parked in it and in what lies below it."""
    threaded: bool = False
    """Whether a thread of the run is blocked for as long as this runs."""
    firm: bool = False
    """Whether the effect of its call must not be repeated unasked."""
    running: bool = False
    """Whether its call is under way."""
    tried: int = 0
    """How many attempts of its call have failed before this one."""
    deadline: float | None = None
    """When the attempt that this belongs to times out."""
    executor: Any = None
    """The executor in whose thread it runs, if it does."""
    branches: int = 0
    """How many tasks in it have named their scopes and not ended."""
    bound: int | None = None
    """For a thread bound to the run: when its function was bound, among all that were bound or ended."""
    unbound: int | None = None
    """When its function ended, likewise."""

    def inside(self, path: str | None, call: str | None = None) -> Frame:
        """The frame of code in this one: of a task that has no path yet, or of the function of a call."""
        frame = Frame(self.scope, path, self, self.call if call is None else call)
        frame.threaded, frame.deadline = self.threaded, self.deadline
        if path is None:
            frame.tried = self.tried
        return frame

    def take(self, name: str, args: str | None, key: str | None) -> Place:
        """The place of the next verb of that name. A branch gets its name by its first one."""
        if key is not None and (type(key) is not str or not 0 < len(key) <= 200 or storable(key) != key):
            raise UsageError(f"key={ascii(key)[:80]}: a key is a text of 1 to 200 characters")
        if self.path is None:
            self._begin_branch(name, args, key)
        taken = self._names.key(name, key)
        if taken is None:
            raise KeyReusedError(self.scope.context(self).id, name, key or "")
        return Place(self, f"{self.path}{taken}", name, args)

    def next_key(self, name: str) -> str:
        """The key that the next verb of that name would have."""
        return f"{self.path}{self._names.upcoming(name)}"

    @property
    def _names(self) -> Names:
        if self.names is None:
            with _naming:
                self.names = self.names or Names()
        return self.names

    def _begin_branch(self, name: str, args: str | None, key: str | None) -> None:
        assert self.parent is not None
        above = self.parent
        while above.path is None:  # a task started by a task that has made no call yet
            assert above.parent is not None
            above = above.parent
        first = branch_name(name, key, args)
        if first is None:
            raise UsageError(
                f"a task begins with a call of {name!r} whose arguments cannot be encoded, so nothing tells it from "
                f"other tasks after a crash. Give it a key: {with_key(name)}."
            )
        mine, names = _Branch(self, above), above._names
        with _naming:  # threads that are bound to the run may begin at once
            taken = names.branch(first, mine, mine.follows)
        if taken is None:
            raise IdenticalBranchError(above.scope.context(above).id, name)
        self.path = f"{above.path}{taken}/"

    @property
    def over(self) -> bool:
        """Whether this is part of a call that has failed, timed out or was given up."""
        frame: Frame | None = self
        while frame is not None:
            if frame.closed:
                return True
            frame = frame.parent
        return False

    def close(self) -> None:
        """The attempt of its call is over."""
        self.closed = True

    @property
    def stream(self) -> str:
        """Where the chunks that it emits are counted. Tasks that have made no call yet are counted together."""
        if self.path is not None or self.parent is None:
            return self.path or ""
        above = self.parent.stream
        return above if above.endswith("?/") else f"{above}?/"


class _Branch:
    """A task, or a thread bound to the run, that has named its scope."""

    def __init__(self, frame: Frame, above: Frame) -> None:
        self.frame = frame
        self._above = above
        self.beside: WeakSet[Any] | None = None
        """Once it has ended: the tasks that were there at the same time; None when that is not known."""
        if isinstance(frame.holder, asyncio.Task):
            above.branches += 1
            frame.holder.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._above.branches <= _MANY:
            self.beside = tasks_beside(task)
        self._above.branches -= 1
        self.frame.holder = None  # a task that has ended is not to be kept for as long as its name is

    def follows(self, other: _Branch) -> bool:
        """Whether this was started after the other had ended."""
        mine, theirs = self.frame, other.frame
        if mine.bound is not None:
            return theirs.unbound is not None and theirs.unbound < mine.bound
        return other.beside is not None and mine.holder not in other.beside
