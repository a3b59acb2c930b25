"""A plain function as a flow: one step whose whole body is journaled."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from holdfast.context import Scope
from holdfast.core.policy import CheckpointPolicy, RunLimit, check_limit, check_policy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import UsageError
from holdfast.flows.base import KEEP, Position, Step
from holdfast.flows.input import fit_input
from holdfast.work import check_name, declared_return, wear

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class Again:
    """Returned by a flow function: it goes round once more with this input and an empty journal.

    So a body that goes round for ever stays cheap to take up again.
    """

    __slots__ = ("input",)

    def __init__(self, input: Any = None) -> None:
        self.input = input


class FunctionFlow(Generic[P, C, R]):
    """A function as a flow. Called, it is that function; `rt.run(flow, input)` runs it durably."""

    suspends = True
    """Its steps are whole bodies of journaled calls: a run may leave between any two of them."""

    def __init__(
        self,
        fn: Callable[P, Any],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None:
        if not inspect.isroutine(inspect.unwrap(fn)):
            raise UsageError(f"@flow marks a function, def or async def, not {fn!r}")
        self._step: Step[..., Any] = Step(fn, retry=retry, timeout=timeout)
        self.name = check_name("a flow", name or self._step.name)
        self.policy, self.limit = check_policy(policy), check_limit(limit)
        self._declared, self._takes_input = _input_of(fn, self.name)
        wear(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        result: C = self._step.fn(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<flow {self.name}>"

    @property
    def result_type(self) -> type[R] | None:
        """The declared return type."""
        declared = declared_return(inspect.unwrap(self._step.fn))
        return declared if isinstance(declared, type) else None

    @property
    def types(self) -> Iterable[Any]:
        """What the function says it takes and returns."""
        return [t for t in (self._declared, self._step.returns) if t is not None]

    @property
    def step_names(self) -> tuple[str, ...]:
        """The one step."""
        return (self._step.called,)

    @property
    def total_steps(self) -> int | None:
        """Not known: `progress(...)` tells how far it is."""
        return None

    takes_state = True

    def fit_state(self, state: Any, before: Any) -> Any:
        """What a user gives in the place of the input before."""
        return self._fit(state)

    def start(self, input: Any) -> Position:
        """The input becomes the state."""
        return Position(self._fit(input), self._cursor(0))

    def _fit(self, input: Any) -> Any:
        if not self._takes_input:
            if input is not None:
                raise UsageError(f"flow {self.name!r} takes no input")
            return None
        return fit_input(self._declared, input)

    def _cursor(self, done: int) -> dict[str, Any]:
        # `body`: its calls may be rewound to as checkpoints may.
        return {"step": done, "next": self._step.called, "body": True}

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """The function, if it still has that name."""
        return self._step if cursor["next"] == self._step.called else None

    async def advance(self, position: Position, scope: Scope) -> Position:
        """The body, from its top: what it had done is found in the journal."""
        args = (position.state,) if self._takes_input else ()
        result = await scope.perform(self._step, *args)
        done = position.cursor["step"] + 1
        if isinstance(result, Again):
            return Position(self._fit(result.input), self._cursor(done))
        # The state stays the input: what the body did to its copy is not the run's.
        return Position(KEEP, {"step": done, "next": None}, result)


def _input_of(fn: Callable[..., Any], name: str) -> tuple[Any, bool]:
    """The declared type of the input, and whether there is any."""
    try:
        taken = [
            p for p in inspect.signature(fn).parameters.values() if p.default is p.empty or p.kind != p.KEYWORD_ONLY
        ]
        hints = inspect.get_annotations(inspect.unwrap(fn), eval_str=True)
    except (NameError, TypeError, SyntaxError, ValueError):
        taken, hints = list(inspect.signature(fn).parameters.values()), {}
    needed = [p for p in taken if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or any(p.kind == p.KEYWORD_ONLY for p in needed):
        raise UsageError(
            f"flow {name!r} takes {len(needed)} arguments; a flow takes one input. Make it a dict or a dataclass."
        )
    return (hints.get(taken[0].name) if taken else None), bool(taken)


class _Mark(Protocol):
    """What `@flow(...)` is, for type checkers."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> FunctionFlow[P, Awaitable[R], R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> FunctionFlow[P, R, R]: ...


@overload
def flow(fn: Callable[P, Awaitable[R]], /) -> FunctionFlow[P, Awaitable[R], R]: ...
@overload
def flow(fn: Callable[P, R], /) -> FunctionFlow[P, R, R]: ...
@overload
def flow(
    *,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    policy: CheckpointPolicy | None = None,
    limit: int | RunLimit | None = None,
) -> _Mark: ...


def flow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    policy: CheckpointPolicy | None = None,
    limit: int | RunLimit | None = None,
) -> Any:
    """Make a flow of a function, `def` or `async def`, with ifs, loops and try; `@flow` and `@flow(...)` both work.

    What is to be kept goes through a step or `call`: after a crash the body runs from its top, and what had
    finished is found instead of done again. It takes one input and what it returns is the run's result.
    """
    if fn is not None:
        return FunctionFlow(fn)
    return lambda function: FunctionFlow(function, name=name, retry=retry, timeout=timeout, policy=policy, limit=limit)
