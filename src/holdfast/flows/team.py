"""A team: members that hand data to one another, in an order that a strategy decides."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from holdfast.context import Scope
from holdfast.core.policy import CheckpointPolicy, check_policy
from holdfast.errors import TooManyStepsError, UnknownTargetError, UsageError
from holdfast.flows.base import Position, Step, as_step
from holdfast.flows.branches import is_flow, settled
from holdfast.flows.input import fit_input
from holdfast.flows.moves import NOT_GIVEN, Handover, Terminate, target_name
from holdfast.inside import spawn
from holdfast.model import Event
from holdfast.work import check_name

log = logging.getLogger("holdfast")

_SELECTING = "(selector)"


class Strategy(StrEnum):
    """Who comes next."""

    SEQUENTIAL = "sequential"
    """Each member once, in order."""
    ROUND_ROBIN = "round_robin"
    """The members in turn, until one terminates."""
    SELECTOR = "selector"
    """Whom `selector(data)` names; None ends it."""
    GRAPH = "graph"
    """Whom `edges` name; no edge ends it."""


class Team:
    """Members are functions of the data, steps or flows, named by their function's name.

        Team("enrich", [fetch, clean, score])
        Team("debate", [pro, con], strategy=Strategy.ROUND_ROBIN, max_turns=6, on_max_turns="return")

    A member returns the new data (None keeps what it has), `Handover(member, data)` or `Terminate(result)`. The
    result of a run is the final data. `edges` of a GRAPH maps a member to the next one, to a function of the
    data that names it, or to a list of (member, condition) of which the first that holds counts. `on_request`
    (name, data), `on_response` (name, data) and `on_step` (name, data in, data out) are told of every turn; for each
    checkpoint `on_step` is told ("checkpoint", None, its id).
    """

    def __init__(
        self,
        name: str,
        members: Sequence[Any],
        strategy: Strategy = Strategy.SEQUENTIAL,
        *,
        selector: Callable[[Any], Any] | None = None,
        edges: Mapping[Any, Any] | None = None,
        max_turns: int = 100,
        on_max_turns: Literal["error", "return"] = "error",
        on_request: Callable[..., Any] | None = None,
        on_response: Callable[..., Any] | None = None,
        on_step: Callable[..., Any] | None = None,
        policy: CheckpointPolicy | None = None,
    ) -> None:
        self.name, self.policy = check_name("a team", name), check_policy(policy)
        self.strategy, self.max_turns, self._on_max_turns = Strategy(strategy), max_turns, on_max_turns
        self._selector, self._selecting = selector, None if selector is None else as_step(selector)
        self._edges = {target_name(member): after for member, after in (edges or {}).items()}
        self._hooks = {"on_request": on_request, "on_response": on_response, "on_step": on_step}
        self.subflows: list[Any] = [member for member in members if is_flow(member)]
        self._members: dict[str, Step[..., Any]] = {}
        self._declared: dict[str, Any] = {}
        problems = self._join(list(members)) + self._problems(selector, edges)
        if problems:
            raise UsageError(f"team {name!r} is not right:" + "".join(f"\n  - {problem}" for problem in problems))

    def __repr__(self) -> str:
        return f"<team {self.name} ({self.strategy}): {', '.join(self._members)}>"

    def _join(self, members: list[Any]) -> list[str]:
        problems = [] if members else ["it has no members"]
        for place, member in enumerate(members):
            step = _child_of(member) if is_flow(member) else as_step(member)
            name = step.name or f"member-{place + 1}"
            if name in self._members:
                problems.append(f"two members are named {name!r}: give one of them another with @step(name=...)")
            self._members[name] = step
            self._declared[name] = None if is_flow(member) else _input_type(step)
        return problems

    def _problems(self, selector: Any, edges: Any) -> list[str]:
        found = []
        if type(self.max_turns) is not int or self.max_turns < 1:
            found.append(f"max_turns={self.max_turns!r} must be a whole number of at least 1")
        if self._on_max_turns not in ("error", "return"):
            found.append(f"on_max_turns={self._on_max_turns!r} must be 'error' or 'return'")
        if (self.strategy is Strategy.SELECTOR) != (selector is not None):
            found.append("strategy SELECTOR and selector= go together")
        if (self.strategy is Strategy.GRAPH) != (edges is not None):
            found.append("strategy GRAPH and edges= go together")
        named = [name for after in self._edges.values() for name in _named_in(after)]
        for member in [*self._edges, *named]:
            if member not in self._members:
                found.append(f"an edge names {member!r}, which is no member")
        return found

    # What the engine asks

    @property
    def result_type(self) -> Any:
        """Not declared: a member may end it with anything."""
        return None

    @property
    def types(self) -> Iterable[Any]:
        """What the members say they take and return."""
        returned = [step.returns for step in self._members.values()]
        results = [flow.result_type for flow in self.subflows]
        return [t for t in (*returned, *self._declared.values(), *results) if t is not None]

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the members."""
        return tuple(self._members)

    @property
    def total_steps(self) -> int | None:
        """How many turns there are; known for a sequence alone."""
        return len(self._members) if self.strategy is Strategy.SEQUENTIAL else None

    def start(self, input: Any) -> Position:
        """The input becomes the data."""
        first: str | None = next(iter(self._members))
        if self._selecting is not None:
            # One that is awaited is asked in a step of its own, before the first turn.
            chosen = _SELECTING if self._selecting.is_async else self._selecting.fn(copy.deepcopy(input))
            first = chosen if chosen in (None, _SELECTING) else self._known("the selector", target_name(chosen))
        declared = self._declared.get(first) if first is not None else None
        return Position(fit_input(declared, input) if declared is not None else input, {"step": 0, "next": first})

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """The member of that name."""
        return self._selecting if cursor["next"] == _SELECTING else self._members.get(cursor["next"])

    async def advance(self, position: Position, scope: Scope) -> Position:
        """One more turn."""
        name, turn, data = position.cursor["next"], position.cursor["step"], position.state
        if name == _SELECTING:
            return self._position(data, turn, await self._select(scope, data))
        if turn >= self.max_turns:
            raise TooManyStepsError(f"team {self.name!r}", f"member {name!r}", self.max_turns, "max_turns")
        declared = self._declared[name]
        data = fit_input(declared, data) if declared is not None else data
        before = copy.deepcopy(data) if self._hooks["on_step"] is not None else None
        await self._tell("on_request", name, data)
        outcome = await scope.perform(self._members[name], data)
        after, target = await self._decide(scope, name, data, outcome)
        await self._tell("on_response", name, after)
        await self._tell("on_step", name, before, after)
        if isinstance(outcome, Terminate):
            return Position(data, {"step": turn + 1, "next": None}, after)
        if turn + 1 >= self.max_turns and self._on_max_turns == "return":
            target = None
        return self._position(after, turn + 1, target)

    def _position(self, data: Any, turn: int, target: str | None) -> Position:
        return Position(data, {"step": turn, "next": target})

    async def _decide(self, scope: Scope, name: str, data: Any, outcome: Any) -> tuple[Any, str | None]:
        """The data after the turn, and who is next."""
        if isinstance(outcome, Terminate):
            return (data if outcome.result is NOT_GIVEN else outcome.result), None
        if isinstance(outcome, Handover):
            target = target_name(outcome.member)
            self._known(f"the handover of member {name!r}", target)
            return (data if outcome.data is None else outcome.data), target
        data = data if outcome is None else outcome
        return data, await self._next(scope, name, data)

    async def _next(self, scope: Scope, name: str, data: Any) -> str | None:
        names = list(self._members)
        place = names.index(name)
        match self.strategy:
            case Strategy.SEQUENTIAL:
                return names[place + 1] if place + 1 < len(names) else None
            case Strategy.ROUND_ROBIN:
                return names[(place + 1) % len(names)]
            case Strategy.SELECTOR:
                return await self._select(scope, data)
            case _:
                return await self._follow_edge(name, data)

    async def _select(self, scope: Scope, data: Any) -> str | None:
        chosen = await scope.perform(self._selecting, copy.deepcopy(data))
        return None if chosen is None else self._known("the selector", target_name(chosen))

    async def _follow_edge(self, name: str, data: Any) -> str | None:
        after = self._edges.get(name)
        if isinstance(after, (list, tuple)):
            for target, holds in after:
                if holds is None or await settled(holds(data)):
                    return target_name(target)
            return None
        if callable(after) and target_name(after) not in self._members:
            after = await settled(after(data))
        return None if after is None else self._known(f"the edge of member {name!r}", target_name(after))

    def _known(self, where: str, target: str) -> str:
        if target not in self._members:
            raise UnknownTargetError(f"{where} of team {self.name!r}", target, self._members)
        return target

    # Hooks

    async def _tell(self, hook: str, *what: Any) -> None:
        """What a hook does wrong is not the team's fault."""
        told = self._hooks[hook]
        if told is None:
            return
        try:
            await settled(told(*what))
        except Exception:
            log.exception("holdfast: %s of team %s raised", hook, self.name)

    @property
    def observe(self) -> Callable[[Event], Any] | None:
        """What tells `on_step` of every checkpoint, if there is one to be told."""
        return None if self._hooks["on_step"] is None else self._observe

    def _observe(self, event: Event) -> Any:
        told = self._hooks["on_step"]
        if event.type == "checkpointed" and told is not None:
            return told("checkpoint", None, f"{event.run}@{event.seq}")
        return None


def _child_of(flow: Any) -> Step[..., Any]:
    async def member(data: Any) -> Any:
        return await spawn(flow, data)

    return Step(member, name=flow.name)


def _input_type(step: Step[..., Any]) -> Any:
    """The annotation of a member's first parameter, when data is made to fit it."""
    fn = inspect.unwrap(step.fn)
    try:
        first = next(iter(inspect.signature(fn).parameters), None)
        declared = inspect.get_annotations(fn, eval_str=True).get(first) if first else None
    except (NameError, TypeError, SyntaxError, ValueError):
        return None
    return declared if isinstance(declared, type) and declared not in (object, dict, list, str) else None


def _named_in(after: Any) -> list[str]:
    """The members that an edge names outright."""
    if isinstance(after, str):
        return [after]
    if isinstance(after, (list, tuple)):
        return [target_name(target) for target, _ in after]
    return []
