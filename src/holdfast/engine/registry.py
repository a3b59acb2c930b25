"""The flows and types that a program has, found by name when a stored run goes on."""

from __future__ import annotations

from typing import Any

from holdfast.core.codec import Codec
from holdfast.core.trail import type_name
from holdfast.errors import FlowNotRegisteredError, UsageError
from holdfast.flows.base import Flow
from holdfast.model import Limit


class Registry:
    """What one runtime knows of the program."""

    def __init__(self) -> None:
        self._flows: dict[str, tuple[Flow[Any], Codec]] = {}
        self._types: list[Any] = []
        self._plain = Codec()
        self.failures: dict[str, type[BaseException]] = {}
        """The exceptions that come back from a log as themselves, by the name that the log gives them."""

    def register(self, *items: Any) -> None:
        """Flows are found by their name from now on, types may appear in any state, exceptions come back as they were.

        Raises UsageError for anything else, and when two different types or exceptions have the same name.
        """
        for item in items:
            if _is_flow(item):
                self.add(item)
            elif isinstance(item, type) and issubclass(item, BaseException):
                self._add_failure(item)
            elif isinstance(item, type):
                self._types.append(item)
                for _, codec in self._flows.values():
                    codec.register(item)
                self._plain.register(item)
            else:
                raise UsageError(f"register takes flows, types and exception classes, not {item!r}")

    def _add_failure(self, cls: type[BaseException]) -> None:
        """A class of the same module and name replaces the older one, because its module was loaded again."""
        known = self.failures.get(cls.__qualname__)
        if known is not None and known.__module__ != cls.__module__:
            raise UsageError(
                f"{type_name(cls)} and {type_name(known)} have the same name, {cls.__qualname__!r}, by which a log "
                f"names the errors in it. Rename one of them, or set __qualname__ in its class body."
            )
        self.failures[cls.__qualname__] = cls

    def add(self, flow: Flow[Any]) -> None:
        """Register one flow with those that it runs as children; nothing happens when it is known.

        Raises UsageError for a flow that is declared wrong, and for what is none.
        """
        known = self._flows.get(getattr(flow, "name", None))  # type: ignore[arg-type]
        if known is not None and known[0] is flow:
            return
        if not _is_flow(flow):
            raise UsageError(
                f"{flow!a:.200} is no flow. Make one of it: @holdfast.flow over a function that makes journaled calls, "
                f"or Pipeline('name', [...]) of its steps"
            )
        # All are looked at before one is added: what is declared wrong leaves nothing behind.
        family = _family(flow)
        for one in family:
            if hasattr(one, "validate"):
                one.validate()
        for one in family:
            if one.name not in self._flows or self._flows[one.name][0] is not one:
                self._flows[one.name] = (one, Codec([*one.types, *self._types]))

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
    def limits(self) -> tuple[Limit, ...]:
        """How many runs of each flow that says so may be under way at once."""
        # A shape of one's own need not know of limits.
        limits = ((flow.name, getattr(flow, "limit", None)) for flow, _ in self._flows.values())
        return tuple(Limit(name, limit.total, limit.per_key) for name, limit in limits if limit is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the flows."""
        return tuple(self._flows)


def _family(flow: Flow[Any]) -> list[Flow[Any]]:
    """The flow and those that it runs as children, and theirs. Raises UsageError when two have the same name."""
    found: dict[str, Flow[Any]] = {}
    to_look_at = [flow]
    while to_look_at:
        one = to_look_at.pop()
        if found.setdefault(one.name, one) is one:
            to_look_at += [child for child in getattr(one, "subflows", ()) if found.get(child.name) is not child]
        else:
            raise UsageError(
                f"flow {flow.name!r} runs two different flows named {one.name!r}. A stored run finds its flow by its "
                f"name: give one of them another."
            )
    return list(found.values())


def _is_flow(item: object) -> bool:
    return hasattr(item, "advance") and hasattr(item, "next_step")
