"""What a fleet runs under torture: flows of every kind, each with about twenty effects that the world outside sees."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, NamedTuple

from holdfast import Agent, Graph, Pipeline, RunLimit, call, flow, sleep, spawn, step
from holdfast.testing import ScriptedModel, wants

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
    graph.map("squares", over=lambda state: range(12), node=act, concurrency=4)
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


_SCRIPT: list[Any] = [
    wants("weigh", id=f"w{n}", grams=n) if n % 2 else wants("find", id=f"f{n}", text="x" * n) for n in range(4)
]


async def _model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    begin(len(messages))
    return await ScriptedModel([*_SCRIPT, "All is done."])(messages, tools)


agent = Agent("agent", _model, [weigh, find])


@flow(name="crew")
async def crew(seed: int) -> list[Any]:
    """Agents as children, and calls beside them."""
    first = await call(act, seed % 100)
    said = await asyncio.gather(*(spawn(agent, f"What is {seed + n} worth?") for n in range(2)))
    return [first, *(one["messages"][-1]["content"] for one in said), await call(act_in_thread, seed % 100)]


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
        placing: dict[str, Any] = {"queue": chance.choice(QUEUES), "priority": chance.randrange(3)}
        kind, given = {
            0: (limited, first_state(seed)),
            1: (line, first_state(seed)),
            2: (calls, seed),
            3: (limited, first_state(seed)),
            4: (graph, {"seed": seed}),
            5: (crew, seed),
        }[which]
        if kind is limited:
            placing["key"] = chance.choice(KEYS)
        made.append(Start(f"{kind.name}-{number:03}", kind, given, placing))
    return made
