"""The flows and types that a program has, found by name when a stored run goes on."""

from __future__ import annotations

from typing import Any

from holdfast.core.codec import Codec
from holdfast.errors import FlowNotRegisteredError, UsageError
from holdfast.flows.base import Flow


class Registry:
    """What one runtime knows of the program."""

    def __init__(self) -> None:
        self._flows: dict[str, tuple[Flow[Any], Codec]] = {}
        self._types: list[Any] = []
        self._plain = Codec()

    def register(self, *items: Any) -> None:
        """Flows are found by their name from now on, and types may appear in any state."""
        for item in items:
            if hasattr(item, "advance") and hasattr(item, "next_step"):
                self.add(item)
            elif isinstance(item, type):
                self._types.append(item)
                for _, codec in self._flows.values():
                    codec.register(item)
                self._plain.register(item)
            else:
                raise UsageError(f"register takes flows and types, not {item!r}")

    def add(self, flow: Flow[Any]) -> None:
        """Register one flow; nothing happens when it is known."""
        known = self._flows.get(flow.name)
        if known is None or known[0] is not flow:
            self._flows[flow.name] = (flow, Codec([*flow.types, *self._types]))

    def flow(self, run_id: str, name: str) -> tuple[Flow[Any], Codec]:
        """The flow of a stored run. Raises FlowNotRegisteredError."""
        try:
            return self._flows[name]
        except KeyError:
            raise FlowNotRegisteredError(run_id, name, list(self._flows)) from None

    def codec(self, flow: str) -> Codec:
        """What decodes the states of that flow; builtin types only when the program does not have it."""
        return self._flows[flow][1] if flow in self._flows else self._plain

    def has(self, flow: str) -> bool:
        """Whether the program has that flow."""
        return flow in self._flows

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the flows."""
        return tuple(self._flows)
