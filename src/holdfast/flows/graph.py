"""A graph: nodes that take the state and return the new one, and edges that say which comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar, overload

from holdfast.context import Scope
from holdfast.core.policy import CheckpointPolicy, check_policy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import TooManyStepsError, UnknownTargetError, UsageError
from holdfast.flows.base import Position, Step
from holdfast.flows.branches import Merge, Reduce, is_flow, settled
from holdfast.flows.input import fit_input
from holdfast.flows.moves import End, Goto, target_name
from holdfast.flows.nodes import Node, compensated, flow_node, human_node, map_node, parallel_node
from holdfast.flows.picture import mermaid
from holdfast.inside import NOTHING
from holdfast.work import OnDoubt, check_name

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])

Chooser = Callable[[Any], Any]


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
    ) -> None: ...
    @overload
    def __init__(
        self, name: str, *, state: type[S], max_steps: int = 256, policy: CheckpointPolicy | None = None
    ) -> None: ...

    def __init__(
        self,
        name: str,
        *,
        state: type[S] | None = None,
        max_steps: int = 256,
        policy: CheckpointPolicy | None = None,
    ) -> None:
        self.name, self.policy, self._state = check_name("a graph", name), check_policy(policy), state
        if type(max_steps) is not int or max_steps < 1:
            raise UsageError(f"graph {name}: max_steps={max_steps!r} must be a whole number of at least 1")
        self.max_steps = max_steps
        self._nodes: dict[str, Node] = {}
        self._starts: list[str] = []
        self._edges: dict[str, str] = {}
        self._choices: dict[str, tuple[Chooser, dict[Any, str]]] = {}
        self._gotos: dict[str, list[str]] = {}
        self._problems: list[str] = []
        self._checked = False

    def __repr__(self) -> str:
        return f"<graph {self.name}: {', '.join(self._nodes)}>"

    # Declaring

    @overload
    def node(self, fn: F, /) -> F: ...
    @overload
    def node(
        self,
        fn: Any = None,
        /,
        *,
        name: str | None = None,
        start: bool = False,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        on_doubt: OnDoubt = "retry",
        executor: Executor | None = None,
        compensate: Callable[..., Any] | None = None,
        goto: Sequence[Any] = (),
    ) -> Any: ...

    def node(
        self,
        fn: Any = None,
        /,
        *,
        name: str | None = None,
        start: bool = False,
        retry: RetryPolicy | None = None,
        timeout: float | None = None,
        on_doubt: OnDoubt = "retry",
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

        def declare(given: Any) -> Any:
            if is_flow(given):
                node = flow_node(given, name)
            else:
                step = (
                    given
                    if isinstance(given, Step)
                    else Step(given, name=name, retry=retry, timeout=timeout, on_doubt=on_doubt, executor=executor)
                )
                node = Node(name or step.called, step)
                if compensate is not None:
                    node = compensated(node, compensate)
            self._add(node, start=start)
            if goto:
                self._gotos[node.name] = [target_name(target) for target in goto]
            return given

        return declare if fn is None else declare(fn)

    def edge(self, source: Any, target: Any) -> None:
        """After `source` comes `target`."""
        source, target = target_name(source), target_name(target)
        if source in self._edges or source in self._choices:
            self._problems.append(f"node {source!r} has two ways out: use graph.branch to choose between them")
        self._edges[source] = target
        self._checked = False

    def branch(self, source: Any, chooser: Any, targets: Mapping[Any, Any]) -> None:
        """After `source` comes the node that `targets` has for the label that `chooser(state)` gives."""
        source = target_name(source)
        if source in self._edges or source in self._choices:
            self._problems.append(f"node {source!r} has two ways out: use one graph.branch to choose between them")
        if not callable(chooser):
            self._problems.append(f"the chooser of branch {source!r} is not a function: {chooser!r}")
        self._choices[source] = (chooser, {label: target_name(target) for label, target in targets.items()})
        self._checked = False

    def parallel(
        self,
        name: str,
        branches: Sequence[Any],
        *,
        merge: Merge = "all",
        reduce: Reduce | None = None,
        start: bool = False,
    ) -> str:
        """A node that does several things at once with the state: functions as journaled calls, flows as children.

        `merge`: wait for all, the first, or so many of them; the rest is given up. `reduce(state, results)`
        gives the new state; without it `state[name]` is the list of results. Gives the node's name.
        """
        return self._special(lambda: parallel_node(name, branches, merge, reduce, self._state), start=start)

    def map(
        self,
        name: str,
        *,
        over: Callable[[Any], Any],
        node: Any,
        concurrency: int = 8,
        reduce: Reduce | None = None,
        start: bool = False,
    ) -> str:
        """A node that calls `node` for every item that `over(state)` gives, `concurrency` at once.

        A crash repeats only the items that had not finished. `reduce(state, results)` gives the new state; without
        it `state[name]` is the list of results, in order. Gives the node's name.
        """
        return self._special(lambda: map_node(name, over, node, concurrency, reduce, self._state), start=start)

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
        return self._special(
            lambda: human_node(name, question, data, schema, timeout, default, reduce, self._state), start=start
        )

    def _special(self, make: Callable[[], Node], *, start: bool) -> str:
        node = make()
        self._add(node, start=start)
        return node.name

    def _add(self, node: Node, *, start: bool) -> None:
        if node.name in self._nodes:
            self._problems.append(f"two nodes are named {node.name!r}")
        self._problems += node.problems
        self._nodes[node.name] = node
        if start:
            self._starts.append(node.name)
        self._checked = False

    def validate(self) -> None:
        """Raises UsageError that lists everything that is wrong with the graph."""
        problems = [*self._problems, *self._start_problems(), *self._edge_problems()]
        if not problems:
            reached = self._reachable()
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

    def _edge_problems(self) -> list[str]:
        known = self._nodes
        problems = [f"an edge begins at {a!r}, which is no node" for a in self._sources() if a not in known]
        for source, targets in [*self._targets().items(), *self._gotos.items()]:
            problems += [
                f"the edge from {source!r} leads to {b!r}, which is no node" for b in targets if b not in known
            ]
            if not targets:
                problems.append(f"the branch at {source!r} has no targets")
        return problems

    def _sources(self) -> list[str]:
        return [*self._edges, *self._choices]

    def _targets(self) -> dict[str, list[str]]:
        chosen = {source: list(targets.values()) for source, (_, targets) in self._choices.items()}
        return {source: [target] for source, target in self._edges.items()} | chosen

    def _reachable(self) -> set[str]:
        targets = self._targets()
        reached, to_visit = set[str](), list(self._starts)
        while to_visit:
            name = to_visit.pop()
            if name not in reached:
                reached.add(name)
                to_visit += [*targets.get(name, []), *self._gotos.get(name, [])]
        return reached

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        self.validate()
        choices = {source: targets for source, (_, targets) in self._choices.items()}
        return mermaid(self._starts[0], self._nodes.values(), self._edges, choices, self._gotos)

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
        outcome = await scope.perform(self._nodes[name].step, state)
        if isinstance(outcome, End):
            return Position(state, {"step": done + 1, "next": None}, outcome.result)
        if isinstance(outcome, Goto):
            state = state if outcome.state is None else outcome.state
            target: str | None = target_name(outcome.node)
        else:
            state = state if outcome is None else outcome
            target = await self._after(name, state)
        if target is not None and target not in self._nodes:
            raise UnknownTargetError(f"node {name!r} of graph {self.name!r}", target, self._nodes)
        return Position(state, {"step": done + 1, "next": target})

    async def _after(self, name: str, state: Any) -> str | None:
        if name not in self._choices:
            return self._edges.get(name)
        chooser, targets = self._choices[name]
        label = await settled(chooser(state))
        if label not in targets:
            raise UnknownTargetError(f"the branch at {name!r} of graph {self.name!r}", label, targets)
        return targets[label]
