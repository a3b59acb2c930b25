"""What a fleet runs under torture: flows of every kind, each with twenty effects that the world outside sees.

Those of a graph and of an agent are partly had by their children. What is given to them is hostile where it can be.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, NamedTuple

from holdfast import Agent, Graph, Pipeline, RunLimit, call, flow, sleep, spawn, step
from holdfast.testing import ScriptedModel, wants

from .fleet_guard import HOSTILE
from .steps import begin, first_state, make_step

STEPS = 20
LIMIT = RunLimit(total=3, per_key=1)
QUEUES = ("default", "mail", "night-shift")
KEYS = ("ann", "ben", "cid", "eve")


class Pace:
    """How long an effect takes; nothing at all where only the result is wanted."""

    seconds = 0.0


async def act(number: int) -> int:
    """Have an effect, on the loop."""
    begin(number)
    await asyncio.sleep(Pace.seconds)
    return number * number


def act_in_thread(number: int) -> int:
    """Have an effect, in a thread."""
    begin(number)
    time.sleep(Pace.seconds)
    return number + 1


# Pipelines


def _paced(index: int) -> Any:
    async def in_loop() -> None:
        await asyncio.sleep(Pace.seconds)

    def in_thread() -> None:
        time.sleep(Pace.seconds)

    return make_step(index, 0.0, also=in_thread if index % 2 else in_loop)


line: Pipeline[Any] = Pipeline("line", [_paced(index) for index in range(STEPS)])
limited: Pipeline[Any] = Pipeline("limited", [_paced(index) for index in range(STEPS)], limit=LIMIT)


# Functions


@flow(name="calls")
async def calls(seed: int) -> int:
    """Calls in a row, a sleep that lets the run go, calls side by side."""
    total = seed
    for number in range(12):
        total += await (call(act, number) if number % 2 else call(act_in_thread, number))
    await sleep(0.1)
    return total + sum(await asyncio.gather(*(call.options(key=str(n))(act, n) for n in range(12, STEPS))))


# Graphs


@step
async def gather(state: dict[str, Any]) -> None:
    """The node that comes first, and three times."""
    state["gathered"] = state.get("gathered", 0) + await act(state["seed"])
    state["rounds"] = state.get("rounds", 0) + 1


@step
def close(state: dict[str, Any]) -> None:
    """The node that comes last."""
    state["closed"] = act_in_thread(state["seed"])


@flow(name="kid")
async def kid(state: dict[str, Any]) -> int:
    """A branch that is a run of its own."""
    return await call(act, state["seed"]) + await call(act_in_thread, state["seed"])


def _loop_body(state: dict[str, Any]) -> int:
    return act_in_thread(state["rounds"])


def _graph() -> Graph[Any]:
    graph: Graph[Any] = Graph("graph")
    graph.node(gather, start=True)
    graph.parallel("views", [_loop_body, kid])
    graph.map("squares", over=lambda state: range(13), node=act, concurrency=4)
    graph.node(close)
    graph.branch("gather", lambda state: state["rounds"] < 3, {True: "gather", False: "views"})
    graph.edge("views", "squares")
    graph.edge("squares", "close")
    return graph


graph = _graph()


# Agents


async def weigh(grams: int) -> int:
    """A tool on the loop."""
    return await act(grams)


def find(text: str) -> str:
    """A tool in a thread."""
    return f"found {text} {act_in_thread(len(text))} times"


def _scripted(*lines: Any) -> Any:
    async def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        begin(len(messages))
        return await ScriptedModel(lines)(messages, tools)

    return model


_WORTH = [wants("weigh", id=f"w{n}", grams=n) if n % 2 else wants("find", id=f"f{n}", text="x" * n) for n in range(3)]
agent = Agent("agent", _scripted(*_WORTH, "All is done."), [weigh, find])


async def delegate(question: str) -> str:
    """A tool that is a run of its own, of another agent."""
    said = await spawn(agent, question)
    return str(said["messages"][-1]["content"])


_BOTH = wants("delegate", id="d0", question="What is it worth?")
_BOTH["tool_calls"] += wants("delegate", id="d1", question=repr(HOSTILE))["tool_calls"]
crew = Agent("crew", _scripted(_BOTH, *_WORTH[1:], "So be it."), [delegate, weigh, find])

FLOWS = (line, limited, calls, graph, kid, agent, crew)


# What is started


class Start(NamedTuple):
    """One run that the world begins with."""

    id: str
    flow: Any
    input: Any
    placing: dict[str, Any]


def starts(runs: int, chance: random.Random) -> list[Start]:
    """So many runs of all kinds, over all queues."""
    made = []
    for number in range(runs):
        which, seed = number % 6, chance.randrange(1000)
        laden = {**first_state(seed), "baggage": HOSTILE}
        placing: dict[str, Any] = {"queue": chance.choice(QUEUES), "priority": chance.randrange(3)}
        kind, given = {
            0: (limited, laden),
            1: (line, laden),
            2: (calls, seed),
            3: (limited, laden),
            4: (graph, {"seed": seed, "baggage": HOSTILE}),
            5: (crew, f"What are {seed} of {HOSTILE['constructor']} worth?"),
        }[which]
        if kind is limited:
            placing["key"] = chance.choice(KEYS)
        made.append(Start(f"{kind.name}-{number:03}", kind, given, placing))
    return made
