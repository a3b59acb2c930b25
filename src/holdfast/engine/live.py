"""A run as this process knows it while it drives it."""

from __future__ import annotations

import asyncio

from holdfast.engine.leaving import Outcome
from holdfast.engine.runner import Runner
from holdfast.engine.shared import Shared


class LiveRun:
    """A run that this process owns and drives."""

    __slots__ = ("done", "id", "parent", "runner", "task")

    def __init__(self, run: str, runner: Runner, loop: asyncio.AbstractEventLoop, parent: str | None = None) -> None:
        self.id, self.runner, self.parent = run, runner, parent
        self.done: Shared[Outcome] = Shared(loop)
        self.task: asyncio.Task[None] | None = None
