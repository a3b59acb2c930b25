"""The kinds of nodes of a graph. Each is a function of the state, made of the same verbs that users have."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_origin, is_typeddict

import msgspec

from holdfast.context import here
from holdfast.core.retry import RetryPolicy
from holdfast.errors import CallFailedError, CallInDoubtError, StepTimeoutError, UnknownTargetError, UsageError
from holdfast.flows.base import Step
from holdfast.flows.branches import Merge, Reduce, is_flow, mapped, merged, needed, settled
from holdfast.flows.moves import Keeping
from holdfast.inside import ask, call, spawn
from holdfast.inside import needed as needed_here
from holdfast.work import Work, as_work, check_name, is_process_pool

_ONCE = RetryPolicy()


class Node:
    """A node: its name, the step that it is, and what it brings with it."""

    def __init__(self, name: str, step: Step[..., Any], shape: str = "box", *, inner: Sequence[Any] = ()) -> None:
        self.name, self.step, self.shape = check_name("a node", name), step, shape
        self.flows = [one for one in inner if is_flow(one)]
        """The flows that it runs as children."""
        works = [as_work(one) for one in inner if not is_flow(one)]
        self.types = [step.returns, *(work.returns for work in works), *(flow.result_type for flow in self.flows)]
        self.problems: list[str] = []


def function_node(given: Any, name: str | None, options: dict[str, Any]) -> Node:
    """A function or step as a node; options that are not given are the step's own."""
    options = {option: value for option, value in options.items() if value is not None}
    if isinstance(given, Step):
        own = {option: getattr(given, option) for option in ("retry", "timeout", "on_doubt", "executor")}
        step: Step[..., Any] = Step(given.fn, name=name or given.name, **own | options)
    else:
        step = Step(given, name=name, **options)
    return Node(step.called, step)


def flow_node(flow: Any, name: str | None, options: dict[str, Any]) -> Node:
    """A flow as a node: a child run with the state as its input, whose result is the new state."""

    async def subgraph(state: Any) -> Any:
        return await spawn(flow, state)

    name = name or flow.name
    step: Step[..., Any] = Step(subgraph, name=name, retry=options["retry"], timeout=options["timeout"])
    node = Node(name, step, "subroutine", inner=[flow])
    node.problems += [
        f"node {name!r} is a flow, which takes no {option}=: give it to the flow's own steps"
        for option in ("on_doubt", "executor")
        if options[option] is not None
    ]
    return node


class _Undone(Exception):
    """A compensation gave nothing to go on with. As a failure it is not kept for the next attempt of its node."""


def compensated(node: Node, undo: Callable[..., Any], keeping: Keeping) -> Node:
    """The node with a function that runs once its retries are exhausted."""
    tried, undone = _with_its_state(node.step), _with_its_state(as_work(undo), may_be_nothing=True)
    kept = Keeping(lambda value, state: keeping.pack(*_taken_apart(value, state)), keeping.unpack)

    async def with_compensation(state: Any) -> Any:
        frame = needed_here("call", here())
        trying = copy.copy(tried)
        trying.retry = tried.retry or frame.scope.retry
        try:
            return await frame.scope.as_a_call(trying, (state,), kept, state)
        except Exception as error:
            if isinstance(error, UnknownTargetError) or _in_doubt(error, tried):
                raise
            args = (state, error) if _takes_error(undo) else (state,)
            place = frame.take(undone.called, frame.scope.digest((args, {})), "compensation")
            try:
                return await frame.scope.call(place, undone, args, {}, keeping=kept)
            except _Undone:
                raise error from None
            except CallFailedError as found:
                if found.error_type == _Undone.__qualname__:
                    raise error from None
                raise

    # Its retries are those of the call inside: the step itself is tried once.
    step = Step(with_compensation, name=node.name, retry=_ONCE)
    step.wraps_step = True
    whole = Node(node.name, step, node.shape, inner=[node.step, undo, *node.flows])
    whole.problems += node.problems
    if any(is_process_pool(work.executor) for work in (tried, undone)):
        whole.problems.append(f"node {node.name!r} has a compensation, so neither can run in a process pool")
    return whole


def _in_doubt(error: Exception, work: Work) -> bool:
    """Whether nobody knows if it was done: what was not done must not be undone."""
    out_of_time = isinstance(error, StepTimeoutError) and work.on_doubt != "retry"
    return out_of_time or isinstance(error, CallInDoubtError)


class _Made(NamedTuple):
    """What a function gave, and the state that it had for itself and may have changed."""

    value: Any
    state: Any


def _taken_apart(value: Any, state: Any) -> tuple[Any, Any]:
    return value if isinstance(value, _Made) else (value, state)  # what a person says was made elsewhere


def _with_its_state(work: Work, *, may_be_nothing: bool = False) -> Work:
    """The function with a state of its own for each attempt; that of a compensation may give nothing."""
    fn = work.fn

    def made(value: Any, state: Any) -> _Made:
        if value is None and may_be_nothing:
            raise _Undone
        return _Made(value, state)

    async def awaited(given: Any, *rest: Any) -> Any:
        state = copy.deepcopy(given)
        return made(await fn(state, *rest), state)

    def plain(given: Any, *rest: Any) -> Any:
        state = copy.deepcopy(given)
        value = fn(state, *rest)
        return _later(value, state) if inspect.isawaitable(value) else made(value, state)

    async def _later(value: Any, state: Any) -> Any:
        return made(await value, state)

    options = {name: getattr(work, name) for name in ("retry", "timeout", "on_doubt", "executor")}
    if options["retry"] is not None:
        retry = options["retry"]
        options["retry"] = msgspec.structs.replace(retry, never=(*retry.never, _Undone))
    alike = Work(awaited if work.is_async else plain, name=work.called, **options)
    alike.returns = work.returns
    return alike


def _takes_error(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not say what it takes
        return False
    return True


def parallel_node(
    name: str,
    branches: Sequence[Any],
    merge: Merge,
    reduce: Reduce | None,
    declared: Any,
    retry: RetryPolicy | None,
    timeout: float | None,
) -> Node:
    """Several functions and flows at once."""
    if isinstance(branches, (str, bytes)) or not isinstance(branches, Iterable):
        raise UsageError(f"parallel {name!r}: its branches are a list of functions and flows, not {branches!r}")
    branches = list(branches)
    if not branches:
        raise UsageError(f"parallel {name!r} has no branches")
    need = needed(f"parallel {name!r}", merge, len(branches))

    async def fan_out(state: Any) -> Any:
        results = await merged(branches, state, need)
        return await _reduced(name, reduce, state, results[0] if merge == "first" and reduce is None else results)

    node = Node(name, Step(fan_out, name=name, retry=retry, timeout=timeout), "parallel", inner=branches)
    node.problems += _needs_reduce(f"parallel {name!r}", reduce, declared)
    return node


def map_node(
    name: str,
    over: Callable[[Any], Any],
    what: Any,
    concurrency: int,
    reduce: Reduce | None,
    declared: Any,
    retry: RetryPolicy | None,
    timeout: float | None,
) -> Node:
    """One function or flow for every item."""
    if type(concurrency) is not int or concurrency < 1:
        raise UsageError(f"map {name!r}: concurrency={concurrency!r} must be a whole number of at least 1")

    async def for_each(state: Any) -> Any:
        # The items are kept: whatever `over` would give the next time, results stay with what they were made from.
        items = await call.options(key="items")(_as_list(over), state)
        return await _reduced(name, reduce, state, await mapped(what, items, concurrency))

    node = Node(name, Step(for_each, name=name, retry=retry, timeout=timeout), "parallel", inner=[what, over])
    node.problems += _needs_reduce(f"map {name!r}", reduce, declared)
    return node


def _as_list(over: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def items(state: Any) -> list[Any]:
        return list(await settled(over(state)))

    return items


def human_node(
    name: str,
    question: str | Callable[[Any], str],
    data: Callable[[Any], Any] | None,
    schema: Any,
    timeout: float | None,
    default: Any,
    reduce: Callable[[Any, Any], Any] | None,
    declared: Any,
) -> Node:
    """A question to a person."""

    async def wait_for_a_person(state: Any) -> Any:
        text = question if isinstance(question, str) else question(state)
        shown = None if data is None else data(state)
        answer = await ask(text, data=shown, schema=schema, timeout=timeout, default=default)
        return await _reduced(name, reduce, state, answer)

    node = Node(name, Step(wait_for_a_person, name=name), "human")
    if isinstance(schema, type):
        node.types.append(schema)
    node.problems += _needs_reduce(f"human node {name!r}", reduce, declared)
    return node


async def _reduced(name: str, reduce: Callable[[Any, Any], Any] | None, state: Any, result: Any) -> Any:
    if reduce is not None:
        return await settled(reduce(state, result))
    if not isinstance(state, dict):
        raise UsageError(
            f"node {name!r} has no reduce=, so its result goes to state[{name!r}], but the state is no dict"
        )
    return {**state, name: result}


def _needs_reduce(what: str, reduce: Any, declared: Any) -> list[str]:
    if reduce is not None or declared in (None, dict) or get_origin(declared) is dict or is_typeddict(declared):
        return []
    return [f"{what} needs reduce=fn(state, results): the state is no dict to put its results into"]
