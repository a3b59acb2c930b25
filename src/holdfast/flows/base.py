"""What every kind of flow is to the engine, and `@step`.

A flow is anything that can start and advance. It knows nothing of stores, leases or commits.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from holdfast.context import Scope, here
from holdfast.core.policy import CheckpointPolicy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import WrongKindError
from holdfast.flows.moves import End as End
from holdfast.flows.moves import pack_outcome as pack_outcome
from holdfast.flows.moves import unpack_outcome as unpack_outcome
from holdfast.inside import call_async, call_blocking, on_loop
from holdfast.work import OnDoubt, Work, wear

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

NO_RESULT: Any = object()
KEEP: Any = object()
"""In the place of a state: it is as it was before the step, whatever was done to the copy."""


class Position(msgspec.Struct, gc=False):
    """A run's state and what comes next; `cursor["next"]` None means that it has finished.

    `cursor` is a JSON object with at least `step` (how many steps are finished) and `next` (a name).

    A flow that says `raw_state = True` gets the state as the tree that is stored, which nobody may change, and
    gives the new one with the `change` to it (see `core.delta`): what is known need not be searched for.

    A flow that says `takes_state = True` begins with its input as the state, made to fit what it declares: a dict of
    the fields is then the same input as the state that is made of it. One that has `fit_state(state, before)` makes
    what a user gives in the place of a stored state fit likewise; `before` is None where the program does not fit that.
    """

    state: Any
    cursor: dict[str, Any]
    result: Any = NO_RESULT
    change: list[Any] | None = None


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


class FinalFailure(Exception):
    """Carries what a step has failed with for good, whatever its retry says."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Step(Work, Generic[P, R]):
    """A function with a name, retries and a timeout.

    Called inside a run it is a journaled call: done once, its result durable before the next line. Called
    outside of one it is that function.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        on_doubt: OnDoubt = "retry",
        executor: Executor | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(fn, name=name, retry=retry, timeout=timeout, on_doubt=on_doubt, executor=executor, key=key)
        wear(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        frame = here()
        if frame is None:
            return cast(R, self.fn(*args, **kwargs))
        if self.is_async != on_loop(frame):
            raise WrongKindError(_WRONG_KIND[self.is_async].format(name=self.called))
        if self.is_async:
            return cast(R, call_async(self, args, kwargs))
        return cast(R, call_blocking(self, args, kwargs))

    def options(
        self,
        *,
        key: str | None = None,
        on_doubt: OnDoubt | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> Step[P, R]:
        """The same step with other options for one call: `search.options(key="a", timeout=5)(url)`."""
        return Step(
            cast(Callable[P, R], self.fn),
            name=self.name,
            retry=self.retry if retry is None else retry,
            timeout=self.timeout if timeout is None else timeout,
            on_doubt=self.on_doubt if on_doubt is None else on_doubt,
            executor=self.executor,
            key=self.key if key is None else key,
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # A step that is declared in a class is its method.
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> str:
        # By reference, so that a process pool finds the same step by its module and name.
        return cast(str, self.__qualname__)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<step {self.name or 'anonymous'}>"


_WRONG_KIND = {
    True: "step {name!r} is async, and this is a def body in a thread. Use holdfast.blocking.call({name}, ...) here.",
    False: "step {name!r} is a def function, which would stop the event loop that this async body runs on. Use "
    "`await call({name}, ...)` here: it runs in a thread.",
}


@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    on_doubt: OnDoubt = "retry",
    executor: Executor | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...


def step(
    fn: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    on_doubt: OnDoubt = "retry",
    executor: Executor | None = None,
) -> Step[P, R] | Callable[[Callable[P, R]], Step[P, R]]:
    """Make a step of a function, `def` or `async def`; `@step` and `@step(...)` both work.

    `timeout` is in seconds and counts for each attempt. A thread cannot be stopped: after the timeout of a
    `def` step its late result is refused, but it may still be running beside the next attempt. `on_doubt`
    says what to do when the process died in it: "retry", "fail", or "ask" a person whether it was done.
    `executor` is any concurrent.futures.Executor that a `def` step is to run in.
    """
    if fn is not None:
        return Step(fn)
    return lambda function: Step(
        function, name=name, retry=retry, timeout=timeout, on_doubt=on_doubt, executor=executor
    )


def as_step(value: Callable[..., Any] | Step[..., Any]) -> Step[..., Any]:
    """The value itself when it is a step already, else a step made of the function."""
    return value if isinstance(value, Step) else Step(value)


AdvanceFn = Callable[[int, Any], Any | Awaitable[Any]]
