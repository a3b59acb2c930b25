"""What a live run needs of the engine that it lives in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.core.codec import Tree
from holdfast.engine.registry import Registry
from holdfast.model import Event
from holdfast.store.base import Store


class Children(Protocol):
    """The child runs of runs."""

    def know(self, flow: Any) -> None:
        """Runs of this flow can be gone on with here from now on."""
        ...

    async def ensure(self, flow: Any, input: Any, id: str, parent: str, *, again: bool) -> None:
        """Return when the child exists; started if it did not. `again` has one that failed before try again."""
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
