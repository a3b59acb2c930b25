"""A pipeline: named steps one after the other, or one function called again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, overload

from holdfast.context import Scope
from holdfast.core.policy import CheckpointPolicy, RunLimit, check_limit, check_policy
from holdfast.errors import UsageError
from holdfast.flows.base import AdvanceFn, End, Position, Step, as_step
from holdfast.flows.input import fit_input, fit_state
from holdfast.flows.moves import NOT_GIVEN
from holdfast.work import check_name

S = TypeVar("S")


class Pipeline(Generic[S]):
    """Steps that take the state and return the new one; returning None keeps the (mutated) state.

        report = Pipeline("report", [search, analyze, summarize])
        loop = Pipeline("loop", advance, total=None)    # advance(step, state), until `total` or End(result)

    The result of a run is the final state, or what `End(result)` carries. `state` declares the type of
    the state, so that it comes back as that type. Functions without a name are named by position.
    """

    # Without a declared state the type is Any, so that a type checker asks for no annotation.
    @overload
    def __init__(
        self: Pipeline[Any],
        name: str,
        steps: Sequence[Callable[..., Any]] | AdvanceFn,
        *,
        state: None = None,
        total: int | None = None,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        steps: Sequence[Callable[..., Any]] | AdvanceFn,
        *,
        state: type[S],
        total: int | None = None,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        steps: Sequence[Callable[..., Any]] | AdvanceFn,
        *,
        state: type[S] | None = None,
        total: int | None = None,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None:
        self.name, self.policy = check_name("a pipeline", name), check_policy(policy)
        self.limit = check_limit(limit)
        self._state = state
        self._loop = callable(steps)
        self._total = total
        if callable(steps):
            if total is not None and (type(total) is not int or total < 0):
                raise UsageError(f"pipeline {name}: total={total!r} must be a whole number or None")
            one = as_step(steps)
            self._steps = {one.name or "step-1": one}
        else:
            given: Any = steps
            if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
                raise UsageError(f"pipeline {name}: its steps are a list of functions, or one function, not {steps!r}")
            if total is not None:
                raise UsageError(f"pipeline {name}: total= goes with the one-function form; a list has its own length")
            self._steps = _by_name(name, list(steps))
        self._names = tuple(self._steps)

    def __repr__(self) -> str:
        return f"<pipeline {self.name}: {' → '.join(self._names)}>"

    @property
    def result_type(self) -> type[S] | None:
        """The declared type of the state; a run's result unless a step ends it with something else."""
        return self._state

    @property
    def types(self) -> Iterable[Any]:
        """The declared state and what the steps say they return."""
        return [t for t in (self._state, *(step.returns for step in self._steps.values())) if t is not None]

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the steps in order."""
        return self._names

    @property
    def total_steps(self) -> int | None:
        """How many steps a run has; None for a loop without a total."""
        return self._total if self._loop else len(self._names)

    takes_state = True

    def fit_state(self, state: Any, before: Any) -> Any:
        """What a user gives in the place of the state before: as the input, or of the type that a step had made."""
        return fit_state(self._state, state, before)

    def start(self, input: Any) -> Position:
        """The input becomes the state."""
        return Position(fit_input(self._state, input), self._cursor(0))

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """The step of that name; None when the program has none such."""
        return self._steps.get(cursor["next"])

    async def advance(self, position: Position, scope: Scope) -> Position:
        """One more step."""
        done, state = position.cursor["step"], position.state
        step = self._steps[position.cursor["next"]]
        result = await (scope.perform(step, done, state) if self._loop else scope.perform(step, state))
        if isinstance(result, End):
            left = state if result.left is NOT_GIVEN else result.left
            return Position(left, {"step": done + 1, "next": None}, result.result)
        # By name, not by number: steps that a new version of the program put in before do not shift it.
        place = done + 1 if self._loop else self._names.index(position.cursor["next"]) + 1
        return Position(state if result is None else result, self._cursor(place))

    def _cursor(self, done: int) -> dict[str, Any]:
        if self._loop:
            return {"step": done, "next": None if self._total is not None and done >= self._total else self._names[0]}
        return {"step": done, "next": self._names[done] if done < len(self._names) else None}


def _by_name(pipeline: str, functions: list[Callable[..., Any]]) -> dict[str, Step[..., Any]]:
    if not functions:
        raise UsageError(f"pipeline {pipeline} has no steps")
    named: dict[str, Step[..., Any]] = {}
    for index, function in enumerate(functions):
        step = as_step(function)
        name = step.name or f"step-{index + 1}"
        if name in named:
            raise UsageError(
                f"pipeline {pipeline} has two steps named {name!r}. A run finds its place by name: give one "
                f"of them another with @step(name=...)."
            )
        named[name] = step
    return named
