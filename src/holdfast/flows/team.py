"""A team: members that hand data to one another, in an order that a strategy decides."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

import msgspec

from holdfast.context import Scope
from holdfast.core.policy import CheckpointPolicy, RunLimit, check_limit, check_policy
from holdfast.core.types import has_fields
from holdfast.errors import TooManyStepsError, UnknownTargetError, UsageError
from holdfast.flows.base import Position, Step, as_step
from holdfast.flows.branches import is_flow, settled
from holdfast.flows.input import fit_input
from holdfast.flows.moves import NOT_GIVEN, Handover, Keeping, Terminate, pack_outcome, target_name
from holdfast.inside import spawn
from holdfast.model import Event
from holdfast.work import check_name

log = logging.getLogger("holdfast")

_SELECTING = "(selector)"
"""What a run goes on with when the selector is to be asked: a step of its own, so that it has its own retries and
timeout, and no member takes its turn again because the selector failed."""


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
    result of a run is the final data. A member whose parameter is annotated with a dataclass, a pydantic, attrs or
    msgspec class gets one.

    `selector(data)`, def or async, a function or a step, names the next member; each choice is a step between turns.
    `edges` of a GRAPH maps a member to the next one, to a function of the data that names it, to (member, condition),
    or to a list of members and such pairs, of which the first that holds counts.

    Every turn counts towards `max_turns`; then the run fails, or ends with the data it has ("return"). `on_request`
    (name, data), `on_response` (name, data) and `on_step` (name, data in, data out) are told of every turn; for each
    checkpoint `on_step` is told ("checkpoint", None, its id). They get copies, and what they raise is only logged.
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
        limit: int | RunLimit | None = None,
    ) -> None:
        self.name, self.policy = check_name("a team", name), check_policy(policy)
        self.limit = check_limit(limit)
        self.max_turns, self._on_max_turns = max_turns, on_max_turns
        self._hooks: dict[str, Any] = {"on_request": on_request, "on_response": on_response, "on_step": on_step}
        self.subflows: list[Any] = []
        self._members: dict[str, Step[..., Any]] = {}
        self._takes: dict[str, Any] = {}
        """The annotation of what each member takes, and the selector."""
        self._ways: dict[str, list[tuple[Any, Any]]] = {}
        """Where each member's edges lead, with their conditions."""
        problems = self._join(members) + self._limits()
        known = any(strategy == one for one in Strategy)
        self.strategy = Strategy(strategy) if known else Strategy.SEQUENTIAL
        if not known:
            problems.append(f"strategy={strategy!r} must be one of {', '.join(f'Strategy.{s.name}' for s in Strategy)}")
        elif (self.strategy is Strategy.SELECTOR) != (selector is not None):
            problems.append("strategy SELECTOR and selector= go together")
        elif (self.strategy is Strategy.GRAPH) != (edges is not None):
            problems.append("strategy GRAPH and edges= go together")
        self._selecting = as_step(selector) if callable(selector) else None
        if self._selecting is None and selector is not None:
            problems.append(f"selector={selector!r} is not a function")
        elif self._selecting is not None:
            self._takes[_SELECTING] = _annotation(self._selecting)
        problems += self._connect(edges)
        if problems:
            raise UsageError(f"team {name!r} is not right:" + "".join(f"\n  - {problem}" for problem in problems))

    def __repr__(self) -> str:
        return f"<team {self.name} ({self.strategy}): {', '.join(self._members)}>"

    # Declaring

    def _join(self, members: Any) -> list[str]:
        if isinstance(members, (str, bytes)) or not isinstance(members, Iterable):
            return [f"its members are a list of functions, not {members!r}"]
        problems = []
        for place, member in enumerate(members, 1):
            if not is_flow(member) and not callable(member):
                problems.append(f"member {place} is neither a function nor a flow: {member!r}")
                continue
            step = _child_of(member) if is_flow(member) else as_step(member)
            name = step.name or f"member-{place}"
            if name in self._members:
                problems.append(f"two members are named {name!r}: give one of them another with @step(name=...)")
            if name == _SELECTING:
                problems.append(f"a member cannot be named {name!r}")
            self._members[name] = step
            if is_flow(member):
                self.subflows.append(member)
            else:
                self._takes[name] = _annotation(step)
        return problems if self._members or problems else ["it has no members"]

    def _limits(self) -> list[str]:
        found = []
        given: Any = self._on_max_turns
        if type(self.max_turns) is not int or self.max_turns < 1:
            found.append(f"max_turns={self.max_turns!r} must be a whole number of at least 1")
        if given not in ("error", "return"):
            found.append(f"on_max_turns={given!r} must be 'error' or 'return'")
        for hook, told in self._hooks.items():
            if told is not None and not callable(told):
                found.append(f"{hook}={told!r} is not a function")
        return found

    def _connect(self, edges: Any) -> list[str]:
        if not isinstance(edges, Mapping):
            return [] if edges is None else [f"edges are {{member: next}}, not {edges!r}"]
        problems = []
        for member, after in edges.items():
            source, ways = target_name(member), self._ways.setdefault(target_name(member), [])
            if source not in self._members:
                problems.append(f"an edge begins at {source!r}, which is no member")
            for way in after if isinstance(after, list) else [after]:
                if isinstance(way, tuple) and (len(way) != 2 or not (way[1] is None or callable(way[1]))):
                    problems.append(f"the edge of {source!r} is no (member, condition): {way!r}")
                    continue
                target, condition = way if isinstance(way, tuple) else (way, None)
                ways.append((target, condition))
                if target is not None and not _chooses(target) and target_name(target) not in self._members:
                    problems.append(f"the edge of {source!r} leads to {target_name(target)!r}, which is no member")
        return problems

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
        return [t for t in (*returned, *self._takes.values(), *results) if t is not None]

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the members."""
        return tuple(self._members)

    @property
    def total_steps(self) -> int | None:
        """How many turns there are; known for a sequence alone."""
        return len(self._members) if self.strategy is Strategy.SEQUENTIAL else None

    takes_state = True

    def start(self, input: Any) -> Position:
        """The input becomes the data."""
        first = _SELECTING if self.strategy is Strategy.SELECTOR else next(iter(self._members))
        return Position(fit_input(_fields_of(self._takes.get(first)), input), {"step": 0, "next": first, "turn": 0})

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """The member of that name, or the selector when it is to be asked."""
        return self._selecting if cursor["next"] == _SELECTING else self._members.get(cursor["next"])

    async def advance(self, position: Position, scope: Scope) -> Position:
        """One more turn, or the choice before one."""
        cursor, data = position.cursor, position.state
        name, turn = cursor["next"], cursor.get("turn", cursor["step"])  # a run may have begun as another kind of flow

        def then(state: Any, turns: int, target: str | None, result: Any = NOT_GIVEN) -> Position:
            after = Position(state, {"step": cursor["step"] + 1, "next": target, "turn": turns})
            if result is not NOT_GIVEN:
                after.result = result
            return after

        if name == _SELECTING:
            return then(data, turn, await self._select(scope, data))
        if turn >= self.max_turns:
            if self._on_max_turns == "return":  # it may do less than when the run came here
                return then(data, turn, None)
            raise TooManyStepsError(f"team {self.name!r}", f"member {name!r}", self.max_turns, "max_turns")
        data = self._fitted(name, data)
        before = copy.deepcopy(data) if self._hooks["on_step"] is not None else None
        await self._tell("on_request", name, data)
        outcome = await scope.perform(self._members[name], data, keeping=self._keeping(name))
        if isinstance(outcome, Terminate):
            left = data if outcome.left is NOT_GIVEN else outcome.left
            result = left if outcome.result is NOT_GIVEN else outcome.result
            await self._told(name, before, result)
            return then(left, turn + 1, None, outcome.result)
        ends = turn + 1 >= self.max_turns and self._on_max_turns == "return"
        after, target = await self._decide(scope, name, data, outcome, ends=ends)
        await self._told(name, before, after)
        return then(after, turn + 1, target)

    def _fitted(self, name: str, data: Any) -> Any:
        declared = _fields_of(self._takes.get(name))
        try:
            return fit_input(declared, data)
        except UsageError as error:
            problem = error.__cause__ or error
            who = "the selector" if name == _SELECTING else f"member {name!r}"
            takes = getattr(declared, "__name__", declared)
            raise UsageError(f"{who} of team {self.name!r} takes {takes}: {problem}") from error

    # Who is next

    async def _decide(self, scope: Scope, name: str, data: Any, outcome: Any, *, ends: bool) -> tuple[Any, str | None]:
        """The data after the turn, and who is next; nobody when it `ends` here, whatever the strategy says."""
        if isinstance(outcome, Handover):
            target: str | None = self._receiver(name, outcome)
            data = data if outcome.data is None else outcome.data
        else:
            data = data if outcome is None else outcome
            target = None if ends else await self._next(scope, name, data)
        return data, None if ends else target

    async def _next(self, scope: Scope, name: str, data: Any) -> str | None:
        names = list(self._members)
        place = names.index(name)
        match self.strategy:
            case Strategy.SEQUENTIAL:
                return names[place + 1] if place + 1 < len(names) else None
            case Strategy.ROUND_ROBIN:
                return names[(place + 1) % len(names)]
            case Strategy.SELECTOR:
                return _SELECTING
            case _:
                return await self._follow_edge(scope, name, data)

    async def _select(self, scope: Scope, data: Any) -> str | None:
        given = self._fitted(_SELECTING, copy.deepcopy(data))
        # Kept by its name: None is a choice too.
        keeping = Keeping(lambda chosen, _: self._chosen(chosen), lambda name: name)
        return self._chosen(await scope.perform(self._selecting, given, keeping=keeping))

    def _chosen(self, choice: Any) -> str | None:
        return None if choice is None else self._known("the selector", choice)

    async def _follow_edge(self, scope: Scope, name: str, data: Any) -> str | None:
        def own() -> Any:  # by the codec: what cannot be stored is told with its path before anybody looks at it
            return scope.decode(scope.encode(data, "state"), "state")

        for target, holds in self._ways.get(name, ()):
            if holds is not None and not await settled(holds(own())):
                continue
            chosen = target
            if _chooses(target) and target_name(target) not in self._members:
                chosen = await settled(target(own()))
            return None if chosen is None else self._known(f"the edge of member {name!r}", chosen)
        return None

    def _receiver(self, name: str, move: Handover) -> str:
        return self._known(f"the handover of member {name!r}", move.member)

    def _keeping(self, name: str) -> Keeping:
        """A handover to nobody is not kept: once it is mended, the member takes its turn once more."""

        def pack(outcome: Any, data: Any) -> Any:
            if isinstance(outcome, Handover):
                self._receiver(name, outcome)
            return pack_outcome(outcome, data)

        return Keeping(pack)

    def _known(self, where: str, target: Any) -> str:
        name = target_name(target)
        if name not in self._members:
            raise UnknownTargetError(f"{where} of team {self.name!r}", name, self._members)
        return name

    # Hooks

    async def _told(self, name: str, before: Any, after: Any) -> None:
        await self._tell("on_response", name, after)
        await self._tell("on_step", name, before, after)

    async def _tell(self, hook: str, *what: Any) -> None:
        """What a hook does wrong, to the data too, is not the team's fault."""
        told = self._hooks[hook]
        if told is None:
            return
        try:
            await settled(told(*copy.deepcopy(what)))
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


def _chooses(target: Any) -> bool:
    """Whether an edge leads to whom this function names, unless it is a member itself."""
    return callable(target) and not is_flow(target) and not isinstance(target, Step)


def _annotation(step: Step[..., Any]) -> Any:
    """The annotation of a member's first parameter; None when it has none or it cannot be made out."""
    fn = inspect.unwrap(step.fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    try:
        signature = inspect.signature(fn, eval_str=True)
    except Exception:  # an annotation is a text that may say anything, and a builtin says nothing
        return None
    first = next(iter(signature.parameters.values()), None)
    return None if first is None or first.annotation is first.empty else first.annotation


def _fields_of(annotation: Any) -> Any:
    """The class that data is made to fit, if the annotation is one."""
    if isinstance(annotation, type) and (has_fields(annotation) or issubclass(annotation, msgspec.Struct)):
        return annotation
    return None
