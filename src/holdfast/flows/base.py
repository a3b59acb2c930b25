"""What every kind of flow is to the engine, and `@step`.

A flow is anything that can start and advance. It knows nothing of stores, leases or commits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from holdfast.context import Scope
from holdfast.core.policy import CheckpointPolicy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

NO_RESULT: Any = object()


def check_name(what: str, name: object) -> str:
    """The name itself. Raises UsageError for what cannot be stored and shown verbatim."""
    if type(name) is not str or not 0 < len(name) <= 200 or any("\ud800" <= char <= "\udfff" for char in name):
        raise UsageError(f"the name of {what} is a text of 1 to 200 characters, not {ascii(name)[:80]}")
    return name


class Position(msgspec.Struct, gc=False):
    """A run's state and what comes next; `cursor["next"]` None means that it has finished.

    `cursor` is a JSON object with at least `step` (how many steps are finished) and `next` (a name).
    """

    state: Any
    cursor: dict[str, Any]
    result: Any = NO_RESULT


class Flow(Protocol[R_co]):
    """What the engine asks of a flow."""

    name: str
    policy: CheckpointPolicy | None

    @property
    def result_type(self) -> type[R_co] | None:
        """The declared type of what a run gives, for type checkers; None when it is not declared."""
        ...

    @property
    def types(self) -> Iterable[Any]:
        """The types (or annotations) that the flow's state may hold."""
        ...

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the steps, in order where there is one."""
        ...

    @property
    def total_steps(self) -> int | None:
        """How many steps there are; None when that is not known."""
        ...

    def start(self, input: Any) -> Position:
        """The first position of a run with this input."""
        ...

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """The step that the cursor comes to; None when the flow does not have it."""
        ...

    async def advance(self, position: Position, scope: Scope) -> Position:
        """The position after one more step. `position.state` belongs to this attempt alone."""
        ...


class End(Generic[R]):
    """Returned by a step: the run is finished and this is its result."""

    __slots__ = ("result",)

    def __init__(self, result: R = None) -> None:  # type: ignore[assignment]
        self.result = result


class Step(Generic[P, R]):
    """A function with a name, retries and a timeout. Called outside a run it is that function."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        executor: Executor | None = None,
    ) -> None:
        if not callable(fn):
            raise UsageError(f"a step is a function, not {fn!r}")
        self.fn, self.retry, self.timeout, self.executor = fn, retry, timeout, executor
        self.is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
        if self.is_async and executor is not None:
            raise UsageError(f"step {name or fn!r}: an executor runs def functions, not async ones")
        if timeout is not None and (type(timeout) not in (int, float) or not timeout > 0):
            raise UsageError(f"step {name or fn!r}: timeout={timeout!r} must be a number of seconds, more than 0")
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise UsageError(
                f"step {name or fn!r}: retry={retry!r} must be a RetryPolicy, e.g. RetryPolicy(attempts=3)"
            )
        if executor is not None and not hasattr(executor, "submit"):
            raise UsageError(f"step {name or fn!r}: executor={executor!r} must be a concurrent.futures.Executor")
        if name is not None:
            check_name("a step", name)
        functools.update_wrapper(self, fn)
        own = getattr(fn, "__name__", None)
        self.name = name or (own if own and own != "<lambda>" else None)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __reduce__(self) -> str:
        # By reference, so that a process pool finds the same step by its module and name.
        return cast(str, self.__qualname__)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<step {self.name or 'anonymous'}>"

    @property
    def returns(self) -> Any:
        """The declared type of what the step returns; None when there is none."""
        try:
            return inspect.get_annotations(inspect.unwrap(self.fn), eval_str=True).get("return")
        except (NameError, TypeError, SyntaxError):
            return None


@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    executor: Executor | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...


def step(
    fn: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    executor: Executor | None = None,
) -> Step[P, R] | Callable[[Callable[P, R]], Step[P, R]]:
    """Make a step of a function, `def` or `async def`; `@step` and `@step(...)` both work.

    `timeout` is in seconds and counts for each attempt. A thread cannot be stopped: after the timeout of a
    `def` step its late result is refused, but it may still be running beside the next attempt. `executor` is
    any concurrent.futures.Executor that a `def` step is to run in.
    """
    if fn is not None:
        return Step(fn)
    return lambda function: Step(function, name=name, retry=retry, timeout=timeout, executor=executor)


def as_step(value: Callable[..., Any] | Step[..., Any]) -> Step[..., Any]:
    """The value itself when it is a step already, else a step made of the function."""
    return value if isinstance(value, Step) else Step(value)


AdvanceFn = Callable[[int, Any], Any | Awaitable[Any]]
