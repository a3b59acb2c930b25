"""What a live run needs of the engine that it lives in, and what its steps need of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.context import RunContext
from holdfast.core.codec import Codec, Tree
from holdfast.core.journal import Journal
from holdfast.core.retry import RetryPolicy
from holdfast.engine.ending import Ending
from holdfast.engine.hands import Hands
from holdfast.engine.inbox import Inbox
from holdfast.engine.notes import Notes
from holdfast.engine.registry import Registry
from holdfast.engine.writer import RunWriter
from holdfast.errors import HoldfastError, NotLoadableError
from holdfast.frames import Frame
from holdfast.model import Event
from holdfast.store.base import Store


class Children(Protocol):
    """The child runs of runs."""

    def know(self, flow: Any) -> None:
        """Runs of this flow can be gone on with here from now on."""
        ...

    async def ensure(self, flow: Any, input: Any, id: str, parent: str, *, again: bool, chosen: bool) -> str | None:
        """Return when the child exists; started if it did not. `again` has one that failed before try again.

        Gives the digest of the input that it was started with if that is another one, which a `chosen` id refuses.
        """
        ...

    async def stop(self, id: str, reason: str | None) -> None:
        """Cancel one child, unless it has ended."""
        ...

    async def outcome(self, id: str) -> tuple[str, str, Any] | None:
        """("result", flow, tree) or ("error", flow, exception) of a child that has ended; None while it has not."""
        ...

    def decode(self, id: str, flow: str, tree: Tree) -> Any:
        """The result of a child, built anew."""
        ...

    async def cancel(self, run: str, reason: str | None) -> None:
        """Cancel every child of a run."""
        ...

    async def ended(self, run: str, parent: str) -> None:
        """Tell the parent that its child has ended."""
        ...


class Surroundings(Protocol):
    """The engine, as far as a run sees it."""

    loop: asyncio.AbstractEventLoop
    pid: int
    """The process that it belongs to."""
    ending: Ending
    store: Store
    clock: Clock
    observed: bool
    registry: Registry
    children: Children

    def emit(self, event: Event) -> None:
        """Show an event to whoever watches."""
        ...

    def tell(self, watcher: Callable[[Event], Any], event: Event) -> None:
        """Show an event to this one."""
        ...


class Host(Protocol):
    """What a scope needs of the run that it belongs to."""

    writer: RunWriter
    clock: Clock
    codec: Codec
    hands: Hands
    begun_journal: Journal | None
    """What was already done inside the step under way, once there may be anything."""

    @property
    def pid(self) -> int:
        """The process in which the run is driven."""
        ...

    @property
    def children(self) -> Children:
        """The child runs of runs."""
        ...

    @property
    def failures(self) -> dict[str, type[BaseException]]:
        """The exceptions that come back from a log as themselves, by their names."""
        ...

    @property
    def retry(self) -> RetryPolicy:
        """What counts for steps that say nothing of being tried again."""
        ...

    @property
    def skips_saves(self) -> bool:
        """Whether the policy may leave a step unsaved."""
        ...

    @property
    def memo(self) -> dict[str, Any]:
        """What the flow keeps in memory for as long as the run is live here."""
        ...

    @property
    def has_inbox(self) -> bool:
        """Whether anything was sent to the run."""
        ...

    @property
    def journal(self) -> Journal:
        """What was already done inside the step under way."""
        ...

    @property
    def notes(self) -> Notes:
        """What writes while a step is under way."""
        ...

    @property
    def inbox(self) -> Inbox:
        """What others sent."""
        ...

    @property
    def holds_calls(self) -> bool:
        """Whether the run is to leave, so that no further call begins."""
        ...

    @property
    def hurries(self) -> bool:
        """Whether the run is to leave as soon as nothing is under way."""
        ...

    def context(self, frame: Frame) -> RunContext:
        """What `current_run()` gives in that frame."""
        ...

    def let_go(self) -> None:
        """Stop the body that is under way: all that it does is wait."""
        ...

    def failed(self, error: HoldfastError) -> None:
        """The run cannot be written: end the attempt."""
        ...

    def unfit(self, error: NotLoadableError) -> None:
        """The program does not fit what is stored: the run stops where it stands, and no attempt of it has failed."""
        ...

    def declare(self, annotation: Any) -> None:
        """Values of these types may be stored and built."""
        ...

    def tell_changed(self, key: str, name: str, before: str, now: str) -> None:
        """A call was found with other arguments than it was made with."""
        ...

    def show(self, kind: str, **fields: Any) -> None:
        """Show something to whoever watches, before it is durable."""
        ...

    async def look(self) -> None:
        """Ask for the mail."""
        ...

    async def post(self, kind: str, key: str) -> bool:
        """Post mail to this very run; False when the key was used before."""
        ...
