"""The shapes that are tortured: teams, a graph, agents. Each part of them tells the world outside that it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from holdfast import (
    Agent,
    CheckpointPolicy,
    Graph,
    Handover,
    Phase,
    Runtime,
    Strategy,
    Team,
    Terminate,
    current_run,
    flow,
    step,
    tool,
)
from holdfast.errors import AnsweredError, RunWaitingError
from holdfast.faults import fault
from holdfast.testing import ScriptedModel, wants

from .steps import begin


@contextmanager
def effect(index: int = 0) -> Iterator[None]:
    """Have an effect that tests can kill before, in and behind."""
    fault("effect.enters")
    begin(index)
    fault("effect.inside")
    try:
        yield
    finally:
        fault("effect.leaves")


Data = dict[str, Any]


def signing(name: str, then: Callable[[Data], Any] = lambda data: None) -> Any:
    """A step that signs the data and returns what `then` says. Those whose name begins with a vowel run in a thread."""

    async def awaited(data: Data) -> Any:
        with effect():
            await asyncio.sleep(0)
            data["signed"].append(name)
            return then(data)

    def plain(data: Data) -> Any:
        with effect():
            data["signed"].append(name)
            return then(data)

    return step(name=name)(plain if name[0] in "aeiou" else awaited)


# Teams


def _handing(to: str) -> Callable[[Data], Any]:
    """The first time it hands over, with data of its own."""

    def then(data: Data) -> Any:
        if data.get("handed"):
            return None
        return Handover(to, {**data, "handed": True, "note": ("by hand", b"\x00", {1})})

    return then


def _ending(after: int) -> Callable[[Data], Any]:
    def then(data: Data) -> Any:
        return Terminate({"ended": data["signed"], "seed": data["seed"]}) if len(data["signed"]) >= after else None

    return then


@flow(name="lodger")
async def lodger(data: Data) -> Data:
    """A member that is a flow: a child run."""
    with effect():
        return {**data, "signed": [*data["signed"], "lodger"]}


def _select(data: Data) -> str | None:
    with effect():
        order = ["ann", "ben", "cid", "ben", "eve"]
        return order[len(data["signed"])] if len(data["signed"]) < len(order) else None


def team(strategy: Strategy) -> Team:
    """A team of four under a strategy, with a handover or an early end where that says something."""
    match strategy:
        case Strategy.SEQUENTIAL:
            return Team("sequential", [signing("ann", _handing("eve")), signing("ben"), signing("eve"), lodger])
        case Strategy.ROUND_ROBIN:
            members = [signing("ann"), signing("ben", _handing("eve")), signing("cid"), signing("eve", _ending(7))]
            return Team("round-robin", members, strategy)
        case Strategy.SELECTOR:
            members = [signing("ann"), signing("ben"), signing("cid", _handing("eve")), signing("eve")]
            return Team("selector", members, strategy, selector=_select)
        case _:
            members = [signing("ann"), signing("ben", _handing("ann")), signing("cid"), signing("eve", _ending(5))]
            edges = {
                "ann": [("cid", lambda data: "handed" in data), "ben"],
                "cid": lambda data: "eve",
                "eve": ("cid", lambda data: True),
            }
            return Team("graph", members, strategy, edges=edges)


SIGNED = {
    Strategy.SEQUENTIAL: "ann eve lodger",
    Strategy.ROUND_ROBIN: "ann ben eve ann ben cid eve",
    Strategy.SELECTOR: "ann ben cid eve eve",
    Strategy.GRAPH: "ann ben ann cid eve",
}
"""Who signs, in order."""


# A graph


async def on_loop(given: Any) -> Any:
    """A call that has an effect, on the loop."""
    with effect():
        await asyncio.sleep(0)
        return [given["item"] ** 2, current_run().step] if "item" in given else len(given["signed"])


def in_thread(given: Data) -> str:
    """A call that has an effect, in a thread."""
    with effect():
        return "+".join(given["signed"])


def _inner() -> Graph[Any]:
    graph: Graph[Any] = Graph("inner")
    first = graph.node(signing("enter"), start=True)
    each = graph.map("each", over=lambda state: [{"item": n} for n in (7, 8)], node=on_loop, concurrency=2)
    graph.edge(first, each)
    graph.edge(each, graph.node(signing("leave")))
    return graph


@flow(name="kid")
async def kid(state: Data) -> int:
    """A branch that is a flow: a child run."""
    with effect():
        return int(state["seed"])


def everything_graph() -> Graph[Any]:
    """A graph with a branch, a loop, branches side by side, a map and a graph inside."""
    graph: Graph[Any] = Graph("everything")
    graph.node(signing("classify"), start=True)
    graph.node(signing("refine"))
    graph.node(signing("explain"))
    graph.parallel("views", [on_loop, in_thread, kid])
    graph.map("squares", over=lambda state: [{"item": n} for n in range(5)], node=on_loop, concurrency=3)
    graph.node(_inner())
    graph.node(signing("close"))
    graph.branch("classify", lambda state: "odd" if state["seed"] % 2 else "even", {"odd": "explain", "even": "refine"})
    graph.branch("refine", lambda state: state["signed"].count("refine") < 3, {True: "refine", False: "views"})
    graph.edge("explain", "views")
    graph.edge("views", "squares")
    graph.edge("squares", "inner")
    graph.edge("inner", "close")
    return graph


# Agents


def find(text: str) -> str:
    """A tool that runs in a thread, with more to say than is kept twice."""
    with effect():
        return f"found {text}: " + "long " * 30


async def weigh(grams: int) -> dict[str, int]:
    """A tool that runs on the loop."""
    with effect():
        await asyncio.sleep(0)
        return {"grams": grams}


class Slipped(Exception):
    """A failure that cannot be made again from its text: whoever finds it in the log must tell the model the same."""

    def __init__(self, depth: int, where: str) -> None:
        self.depth = depth
        super().__init__(f"fell {depth} deep into {where}")


async def slip(depth: int) -> str:
    """A tool that fails, which the model is told."""
    with effect():
        await asyncio.sleep(0)
        raise Slipped(depth, "the water")


@tool(approval=True)
async def pay(amount: int) -> str:
    """A tool that a person is asked about."""
    with effect():
        return f"paid {amount}"


def _both(*messages: Data) -> Data:
    """One message that wants what all of these want."""
    return {**messages[0], "tool_calls": [call for message in messages for call in message["tool_calls"]]}


SCRIPT = [
    _both(wants("find", id="f1", text="a needle"), wants("weigh", id="w1", grams=3)),
    _both(wants("slip", id="s1", depth=2), wants("find", id="f2", text="a thread")),
    "The plan is made.",
    wants("weigh", id="w2", grams=4),
    "All is done.",
]
APPROVED = [*SCRIPT[:3], _both(wants("pay", id="p1", amount=40), wants("weigh", id="w2", grams=4)), SCRIPT[4]]


def agent(script: list[Any], policy: CheckpointPolicy | None = None) -> Agent:
    """An agent of two phases with tools."""
    scripted = ScriptedModel(script)

    async def model(messages: list[Data], tools: list[Data]) -> Any:
        with effect():
            return await scripted(messages, tools)

    phases = [
        Phase("plan", prompt="Make a plan.", tools=[find, weigh, slip]),
        Phase("work", instructions="Do it.", prompt="Go on.", tools=[find, weigh, pay]),
    ]
    return Agent("worker", model, instructions="Be brief.", phases=phases, policy=policy)


# A map


class Turns:
    """Lets calls end one by one, in order, each when its place has been taken: each has a commit of its own then.

    How many end together is a matter of luck otherwise, and so is the number of commits.
    """

    def __init__(self, items: int, concurrency: int) -> None:
        self._items, self._concurrency = items, concurrency
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def wait(self, number: int) -> None:
        """Return when it is this one's turn."""
        mine = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._call_next()
        await mine
        del self._waiting[number]
        if self._items - 1 in self._waiting:  # nobody comes any more who would call the next one
            self._call_next()

    def _call_next(self) -> None:
        first = self._waiting[min(self._waiting)]
        full = len(self._waiting) == self._concurrency or self._items - 1 in self._waiting
        if full and not first.done():
            first.set_result(None)


def squares(items: int, concurrency: int, *, in_turn: bool) -> Graph[Any]:
    """A graph of one map, whose calls end in turn or when it happens."""
    turns = Turns(items, concurrency)

    async def square(number: int) -> int:
        begin(number)
        await (turns.wait(number) if in_turn else asyncio.sleep(0.001 + number % 7 / 1000))
        return number * number

    graph: Graph[Any] = Graph("squares")
    graph.map("squares", over=lambda state: range(items), node=square, concurrency=concurrency, start=True)
    return graph


# What is run


async def _run(rt: Runtime, seed: int, flow: Any, given: Callable[[int], Any]) -> Any:
    """The result, and every state on the way to it; a person who is asked allows it."""
    while True:
        with suppress(RunWaitingError):
            result = await rt.run(flow, given(seed), id="a", until="settled")
            return result, [(saved.step, saved.next, saved.state) async for saved in rt.checkpoints("a")]
        async for asked in rt.asks("a"):
            with suppress(AnsweredError):
                await rt.answer("a", {"approved": True}, ask=asked.id)


def _scenario(flow: Callable[[], Any], given: Callable[[int], Any]) -> Callable[[Runtime, int], Awaitable[Any]]:
    return lambda rt, seed: _run(rt, seed, flow(), given)


def _question(seed: int) -> str:
    return f"What is {seed} worth?"


TEAMS = {f"team {strategy}": strategy for strategy in Strategy}
SCENARIOS: dict[str, Callable[[Runtime, int], Awaitable[Any]]] = {
    **{
        name: _scenario(partial(team, strategy), lambda seed: {"seed": seed, "signed": []})
        for name, strategy in TEAMS.items()
    },
    "graph": _scenario(everything_graph, lambda seed: {"seed": 2 * seed, "signed": []}),
    "agent": _scenario(partial(agent, SCRIPT), _question),
    "agent that saves every third turn": _scenario(
        partial(agent, SCRIPT, CheckpointPolicy(every_n_steps=3)), _question
    ),
    "agent with an approval": _scenario(partial(agent, APPROVED), _question),
}
