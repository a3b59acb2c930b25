"""What a step may return instead of a state, to say where the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

R = TypeVar("R")
NOT_GIVEN: Any = object()


class End(Generic[R]):
    """The run is finished and this is its result."""

    __slots__ = ("left", "result")
    returned_by: ClassVar = "a step of a pipeline or a node of a graph returns it, a member of a team Terminate(...)"

    def __init__(self, result: R = None) -> None:  # type: ignore[assignment]
        self.result = result
        self.left: Any = NOT_GIVEN
        """The state that the step had made by then, where that is known from the log alone."""


class Goto:
    """A graph goes on with this node, whatever its edges say; with this state, or the one it has."""

    __slots__ = ("node", "state")
    returned_by: ClassVar = "a node of a graph returns it, a member of a team Handover(...)"

    def __init__(self, node: Any, state: Any = None) -> None:
        self.node, self.state = node, state


class Handover:
    """A team goes on with this member, whatever its strategy says; with this data, or what it has."""

    __slots__ = ("data", "member")
    returned_by: ClassVar = "a member of a team returns it, a node of a graph Goto(...)"

    def __init__(self, member: Any, data: Any = None) -> None:
        self.member, self.data = member, data


class Terminate:
    """A team is finished: with this result, or with the data it has."""

    __slots__ = ("left", "result")
    returned_by: ClassVar = "a member of a team returns it, elsewhere End(...) ends a run"

    def __init__(self, result: Any = NOT_GIVEN) -> None:
        self.result = result
        self.left: Any = NOT_GIVEN
        """The data that the member had made by then, where that is known from the log alone."""


def target_name(target: Any) -> str:
    """The name of a node or member that may be given as the function itself."""
    if isinstance(target, str):
        return target
    return str(getattr(target, "name", None) or getattr(target, "__name__", None) or target)


def pack_outcome(value: Any, state: Any) -> Any:
    """What is stored of what a step returned, so that nothing of it is lost, nor of what it did to `state`."""
    match value:
        case End():
            return ("end", value.result, state)
        case Goto():
            return ("goto", target_name(value.node), state if value.state is None else value.state)
        case Handover():
            return ("handover", target_name(value.member), state if value.data is None else value.data)
        case Terminate():
            given = value.result is not NOT_GIVEN
            return ("terminate", state, value.result) if given else ("terminate", state)
        case _:
            return ("state", state if value is None else value)


def unpack_outcome(packed: Any) -> Any:
    """What the step returned."""
    match packed:
        case ("state", state):
            return state
        case ("end", result, left):
            end = End(result)
            end.left = left
            return end
        case ("terminate", left, *result):
            terminate = Terminate(*result)
            terminate.left = left
            return terminate
        case (kind, *rest):
            return {"goto": Goto, "handover": Handover}[kind](*rest)


class Keeping(NamedTuple):
    """How a step that is journaled is kept: what is stored of what it gives, which it raises for if that cannot be."""

    pack: Callable[[Any, Any], Any] = pack_outcome
    """Of what it gives, and of the state that it was given."""
    unpack: Callable[[Any], Any] = unpack_outcome
    """What it gave."""


MOVES = Keeping()
