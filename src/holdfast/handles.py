"""RunHandle: one run, as whoever started it holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.engine.live import LiveRun
from holdfast.errors import RunNotFoundError

if TYPE_CHECKING:
    from holdfast.runtime import Runtime

R = TypeVar("R")


class RunHandle(Generic[R]):
    """A run, wherever it is driven."""

    def __init__(self, runtime: Runtime, run: str, live: LiveRun | None = None, *, queued: bool = False) -> None:
        self._runtime, self._live, self._queued = runtime, live, queued
        self.id = run

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    async def result(self) -> R:
        """The run's result, when it has one.

        Raises RunFailedError, RunCancelledError, RunPausedError, or RunInterruptedError when this process
        handed it back. Giving up the wait does not stop the run. One that was put into a queue is waited for, and
        never taken up by waiting.
        """
        following = self._runtime._now().following
        if self._queued:
            attended: R = await following.attend(self.id)
            return attended
        try:
            result: R = await following.follow(self.id, seen=self._live)
        except RunNotFoundError:
            if self._live is None:
                raise
            result = await following.outcome(self._live)  # the store does not keep it: what became of it is known here
        return result

    async def pause(self) -> None:
        """Pause the run at its next safe point. It stays paused, over restarts too, until it is resumed."""
        await self._runtime.pause(self.id)

    async def resume(self) -> None:
        """Go on with the run from its latest checkpoint, here."""
        await self._runtime.resume(self.id)

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the run at its next safe point, for good. An async step under way gets a CancelledError."""
        await self._runtime.cancel(self.id, reason)

    async def checkpoint(self) -> str:
        """Make a checkpoint at the next safe point and give its id, RUN@SEQ."""
        return await self._runtime._now().verbs.checkpoint(self.id)

    async def send(self, topic: str, data: Any = None) -> None:
        """Send a message to the run, for its `receive(topic)`; durable when this returns."""
        await self._runtime.send(self.id, topic, data)

    async def answer(self, value: Any, *, ask: str | None = None) -> str:
        """Answer the question that the run waits with; see `Runtime.answer`."""
        return await self._runtime.answer(self.id, value, ask=ask)
