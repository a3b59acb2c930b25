"""A graph: nodes that take the state and return the new one, and edges that say which comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from holdfast.context import Scope
from holdfast.core.policy import CheckpointPolicy, RunLimit, check_limit, check_policy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import TooManyStepsError, UnknownTargetError, UsageError
from holdfast.flows.base import Position, Step
from holdfast.flows.branches import Merge, Reduce, is_flow, settled
from holdfast.flows.edges import Edges
from holdfast.flows.input import fit_input, fit_state
from holdfast.flows.moves import NOT_GIVEN, End, Goto, Keeping, pack_outcome, target_name
from holdfast.flows.nodes import Node, compensated, flow_node, function_node, human_node, map_node, parallel_node
from holdfast.flows.picture import mermaid
from holdfast.inside import NOTHING
from holdfast.work import OnDoubt, check_name

S = TypeVar("S")
T = TypeVar("T")


class NodeOptions(TypedDict, total=False):
    """What `graph.node` takes."""

    name: str | None
    start: bool
    retry: RetryPolicy | None
    timeout: float | None
    on_doubt: OnDoubt | None
    executor: Executor | None
    compensate: Callable[..., Any] | None
    goto: Sequence[Any]


class Graph(Generic[S]):
    """Nodes and edges; a node without an outgoing edge ends the run.

        support = Graph("support", state=Ticket)

        @support.node(start=True)
        async def classify(ticket): ...

        support.branch(classify, lambda ticket: ticket.kind, {"bug": fix, "question": answer})

    The result of a run is the final state, or what `End(result)` carries. `max_steps` keeps a loop from going
    round for ever. What is declared wrong is told when the graph is first used, all of it at once.
    """

    @overload
    def __init__(
        self: Graph[Any],
        name: str,
        *,
        state: None = None,
        max_steps: int = 256,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        state: type[S],
        max_steps: int = 256,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        state: type[S] | None = None,
        max_steps: int = 256,
        policy: CheckpointPolicy | None = None,
        limit: int | RunLimit | None = None,
    ) -> None:
        self.name, self.policy, self._state = check_name("a graph", name), check_policy(policy), state
        self.limit = check_limit(limit)
        if type(max_steps) is not int or max_steps < 1:
            raise UsageError(f"graph {name}: max_steps={max_steps!r} must be a whole number of at least 1")
        self.max_steps = max_steps
        self._nodes: dict[str, Node] = {}
        self._starts: list[str] = []
        self._edges = Edges()
        self._problems: list[str] = []
        self._checked = False

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self._nodes)}>"

    # Declaring

    @overload
    def node(self, given: None = None, /, **options: Unpack[NodeOptions]) -> Callable[[T], T]: ...
    @overload
    def node(self, given: T, /, **options: Unpack[NodeOptions]) -> T: ...

    def node(
        self,
        given: Any = None,
        /,
        *,
        name: str | None = None,
        start: bool = False,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        on_doubt: OnDoubt | None = None,
        executor: Executor | None = None,
        compensate: Callable[..., Any] | None = None,
        goto: Sequence[Any] = (),
    ) -> Any:
        """Make a node of a function of the state, of a step, or of a flow, which becomes a child run.

        Works as a decorator, with and without options, and called with a function. A node returns the new state
        (None keeps the one that it may have changed), `Goto(node, state)` or `End(result)`. `compensate(state,
        error)` runs once its retries are exhausted: what it returns counts as the node's; None fails the run. `goto`
        names the nodes that it goes to by `Goto`, as far as no edge leads there.
        """
        options = {"retry": retry, "timeout": timeout, "on_doubt": on_doubt, "executor": executor}

        def declare(what: Any) -> Any:
            node = (flow_node if is_flow(what) else function_node)(what, name, options)
            if compensate is not None:
                node = compensated(node, compensate, self._keeping(node.name))
            self._add(node, start=start)
            self._edges.also_called(what, node.name)
            if goto:
                self._edges.announce(node.name, goto)
            return what

        return declare if given is None else declare(given)

    def edge(self, source: Any, target: Any) -> None:
        """After `source` comes `target`; both by name or as what was made the node."""
        self._edges.add(source, None, {None: target})
        self._checked = False

    def branch(self, source: Any, chooser: Any, targets: Mapping[Any, Any]) -> None:
        """After `source` comes the node that `targets` has for the label that `chooser(state)` gives.

        The chooser may be async. A label that is not there fails the run at `source`, which is done again by a resume.
        """
        if not callable(chooser):
            self._problems.append(f"the chooser of branch {target_name(source)!r} is not a function: {chooser!r}")
        if not hasattr(targets, "items"):
            raise UsageError(f"graph {self.name}: the targets of a branch are {{label: node}}, not {targets!r}")
        self._edges.add(source, chooser, targets)
        self._checked = False

    def parallel(
        self,
        name: str,
        branches: Sequence[Any],
        *,
        merge: Merge = "all",
        reduce: Reduce | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        start: bool = False,
    ) -> str:
        """A node that does several things at once with the state: functions as journaled calls, flows as children.

        `merge`: wait for all, the first, or so many of them; the rest is given up. `reduce(state, results)`
        gives the new state; without it `state[name]` is the list of results. Gives the node's name.
        """
        return self._add(parallel_node(name, branches, merge, reduce, self._state, retry, timeout), start=start)

    def map(
        self,
        name: str,
        *,
        over: Callable[[Any], Any],
        node: Any,
        concurrency: int = 8,
        reduce: Reduce | None = None,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        start: bool = False,
    ) -> str:
        """A node that calls `node` for every item that `over(state)` gives, `concurrency` at once.

        A crash repeats only the items that had not finished. `reduce(state, results)` gives the new state; without
        it `state[name]` is the list of results, in order. Gives the node's name.
        """
        made = map_node(name, over, node, concurrency, reduce, self._state, retry, timeout)
        return self._add(made, start=start)

    def human(
        self,
        name: str,
        question: str | Callable[[Any], str],
        *,
        data: Callable[[Any], Any] | None = None,
        schema: Any = None,
        timeout: float | None = None,
        default: Any = NOTHING,
        reduce: Callable[[Any, Any], Any] | None = None,
        start: bool = False,
    ) -> str:
        """A node that asks a person and waits without a process. `reduce(state, answer)` gives the new state.

        Without `reduce`, `state[name]` is the answer. Gives the node's name.
        """
        return self._add(human_node(name, question, data, schema, timeout, default, reduce, self._state), start=start)

    def _add(self, node: Node, *, start: bool) -> str:
        if node.name in self._nodes:
            self._problems.append(f"two nodes are named {node.name!r}")
        self._problems += node.problems
        self._nodes[node.name] = node
        if start:
            self._starts.append(node.name)
        self._checked = False
        return node.name

    def validate(self) -> None:
        """Raises UsageError that lists everything that is wrong with the graph."""
        problems = [*self._problems, *self._start_problems(), *self._edges.join(self._nodes)]
        if self._starts:
            reached = self._edges.reached(self._starts)
            problems += [
                f"node {name!r} cannot be reached by any edge (a Goto to it is declared with goto=)"
                for name in self._nodes
                if name not in reached
            ]
        if problems:
            listed = "".join(f"\n  - {problem}" for problem in dict.fromkeys(problems))
            raise UsageError(f"graph {self.name!r} is not right:{listed}")
        self._checked = True

    def _start_problems(self) -> list[str]:
        if not self._nodes:
            return ["it has no nodes"]
        if len(self._starts) == 1:
            return []
        found = f"{len(self._starts)} start nodes ({', '.join(self._starts)})" if self._starts else "no start node"
        return [f"it has {found}: mark one with start=True"]

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        self.validate()
        return mermaid(self._starts[0], self._nodes.values(), self._edges)

    # Running

    @property
    def result_type(self) -> type[S] | None:
        """The declared type of the state."""
        return self._state

    @property
    def types(self) -> Iterable[Any]:
        """The declared state, and what the nodes say they return."""
        returned = (annotation for node in self._nodes.values() for annotation in node.types)
        return [t for t in (self._state, *returned) if t is not None]

    @property
    def subflows(self) -> Iterable[Any]:
        """The flows that its nodes run as children."""
        return [flow for node in self._nodes.values() for flow in node.flows]

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(self._nodes)

    @property
    def total_steps(self) -> int | None:
        """Not known: it depends on the way that a run takes."""
        return None

    takes_state = True

    def fit_state(self, state: Any, before: Any) -> Any:
        """What a user gives in the place of the state before: as the input, or of the type that a node had made."""
        return fit_state(self._state, state, before)

    def start(self, input: Any) -> Position:
        """The input becomes the state."""
        if not self._checked:
            self.validate()
        return Position(fit_input(self._state, input), {"step": 0, "next": self._starts[0]})

    def next_step(self, cursor: dict[str, Any]) -> Step[..., Any] | None:
        """The node of that name; None when the graph has none such."""
        node = self._nodes.get(cursor["next"])
        return None if node is None else node.step

    async def advance(self, position: Position, scope: Scope) -> Position:
        """One more node."""
        name, done, state = position.cursor["next"], position.cursor["step"], position.state
        if done >= self.max_steps:
            raise TooManyStepsError(f"graph {self.name!r}", f"node {name!r}", self.max_steps, "max_steps")
        if not self._checked:
            self.validate()
        outcome = await scope.perform(self._nodes[name].step, state, keeping=self._keeping(name))
        if isinstance(outcome, End):
            left = state if outcome.left is NOT_GIVEN else outcome.left
            return Position(left, {"step": done + 1, "next": None}, outcome.result)
        if isinstance(outcome, Goto):
            state = state if outcome.state is None else outcome.state
            target: str | None = self._known(name, outcome)
        else:
            state = state if outcome is None else outcome
            target = await self._after(name, state)
        return Position(state, {"step": done + 1, "next": target})

    def _known(self, name: str, move: Goto) -> str:
        target = self._edges.name(move.node, self._nodes)
        if target not in self._nodes:
            raise UnknownTargetError(f"node {name!r} of graph {self.name!r}", target, self._nodes)
        return target

    def _keeping(self, name: str) -> Keeping:
        """A move to nowhere is not kept: once it is mended, the node is done once more."""

        def pack(outcome: Any, state: Any) -> Any:
            if isinstance(outcome, Goto):
                self._known(name, outcome)
            return pack_outcome(outcome, state)

        return Keeping(pack)

    async def _after(self, name: str, state: Any) -> str | None:
        way = self._edges.ways.get(name)
        if way is None:
            return None
        label = None if way.chooser is None else await settled(way.chooser(state))
        try:
            return way.targets[label]
        except (KeyError, TypeError):  # TypeError: a label that cannot be a key at all
            raise UnknownTargetError(f"the branch at {name!r} of graph {self.name!r}", label, way.targets) from None
