"""The functions that are tortured: flows whose calls tell the world outside that they begin."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Again, Runtime, ask, blocking, call, current_run, emit, flow, receive, sleep, spawn
from holdfast.errors import AnsweredError, RunFailedError, RunWaitingError
from holdfast.faults import fault

from .steps import Outside, begin

CALLS = 5
POLICIES = ("retry", "fail", "done", "not done")
"""What becomes of a call in doubt: the two that ask are named by the answer."""
BODIES = ("async", "def")


async def act(index: int) -> str:
    """Have an effect, on the loop."""
    begin(index)
    fault("effect.inside")
    await asyncio.sleep(0)
    return f"{index}:made"


def act_in_thread(index: int) -> str:
    """Have an effect, in a thread."""
    begin(index)
    fault("effect.inside")
    return f"{index}:made"


def five_calls(body: str, policy: str) -> Any:
    """A flow of five journaled calls, each with its number as key; two of an async body's run side by side."""
    on_doubt: Any = policy if policy in ("retry", "fail") else "ask"

    @flow(name="five-calls")
    async def in_loop(seed: int) -> list[str]:
        made = [await call.options(key="0", on_doubt=on_doubt)(act, 0)]
        made.append(await call.options(key="1", on_doubt=on_doubt)(act_in_thread, 1))
        made += await asyncio.gather(*(call.options(key=str(n), on_doubt=on_doubt)(act, n) for n in (2, 3)))
        return [*made, await call.options(key="4", on_doubt=on_doubt)(act, 4)]

    @flow(name="five-calls")
    def in_thread(seed: int) -> list[str]:
        made = [blocking.call.options(key=str(n), on_doubt=on_doubt)(act_in_thread, n) for n in range(4)]
        return [*made, blocking.call.options(key="4", on_doubt=on_doubt)(act, 4)]

    return in_loop if body == "async" else in_thread


async def run_calls(rt: Runtime, seed: int, body: str, policy: str) -> Any:
    """The results of the five calls, or the name of the error that ended the run; questions are answered."""
    while True:
        try:
            return await rt.run(five_calls(body, policy), seed, id="a", until="settled")
        except RunFailedError as error:
            return "CallInDoubtError" if "CallInDoubtError" in str(error) else str(error)
        except RunWaitingError:
            async for question in rt.asks("a"):
                told = {"done": False} if policy == "not done" else {"done": True, "result": _told(question.data)}
                await rt.answer("a", told, ask=question.id)


def _scenario(body: str, policy: str) -> Callable[[Runtime, int], Awaitable[Any]]:
    return lambda rt, seed: run_calls(rt, seed, body, policy)


FIVE_CALLS = {f"{body} {policy}": _scenario(body, policy) for body in BODIES for policy in POLICIES}


def _told(data: dict[str, Any]) -> str:
    return f"{index_of(data['key'])}:told"


def index_of(key: str) -> int:
    """Which of the five has that key."""
    return int(key.rpartition("=")[2])


# Branches, children, rounds

BRANCHES, IN_ROW = 20, 3


async def mark(branch: int, place: int) -> list[Any]:
    """Have an effect; the result tells which call it belongs to and who made it."""
    begin(branch)
    await asyncio.sleep(0.001)
    return [branch, place, current_run().call, os.getpid()]


def branches() -> Any:
    """A flow of branches side by side that call one function, each a few times, with pauses of random length."""
    chance = random.Random(os.getpid())

    async def branch(number: int) -> list[Any]:
        made = []
        for place in range(IN_ROW):
            await asyncio.sleep(chance.uniform(0, 0.02))  # not journaled: it takes another time after a crash
            made.append(await call(mark, number, place))
            Outside.report("returned", call=made[-1][2])
        return made

    @flow(name="branches")
    async def body(seed: int) -> list[Any]:
        return await asyncio.gather(*(branch(number) for number in range(BRANCHES)))

    return body


@flow(name="child")
async def child(number: int) -> int:
    """Two calls and a little arithmetic."""
    await call(act, number)
    await call(act_in_thread, number)
    return number * number


def parent(children: int) -> Any:
    """A flow that comes to the sum of what its children come to."""

    @flow(name="parent")
    async def body(seed: int) -> int:
        return seed + sum(await asyncio.gather(*(spawn(child, number) for number in range(children))))

    return body


def rounds(total: int, each: int) -> Any:
    """A flow that makes `total` calls in a row and hands itself on after every `each` of them."""

    @flow(name="rounds")
    async def body(state: dict[str, int]) -> Any:
        for _ in range(each):
            state = {"done": state["done"] + 1, "sum": await call(added, state["sum"], state["done"])}
            if state["done"] == total:
                return state
        return Again(state)

    return body


async def added(sum: int, number: int) -> int:
    """Have an effect and add."""
    begin(number)
    return sum + number


# Waits


async def slow(index: int) -> str:
    """Have an effect that takes longer than a run that only waits is kept."""
    begin(index)
    await asyncio.sleep(0.2)
    return f"{index}:made"


def question(*, beside: bool) -> Any:
    """A flow that asks for a number, with a call beside it or not, and has an effect when it got it."""

    @flow(name="question")
    async def body(seed: int) -> list[Any]:
        others = [call(slow, 0)] if beside else []
        *made, number = await asyncio.gather(*others, ask("Which number?", schema=int))
        return [*made, number, await call(act, 1)]

    return body


@flow(name="timer")
async def timer(seconds: float) -> list[str]:
    """Has an effect before and after a sleep."""
    before = await call(act, 0)
    await sleep(seconds)
    return [before, await call(act, 1)]


# Streams


def stream(chunks: int, *, changing: bool) -> Any:
    """A flow that emits numbers. Those of a `changing` one tell the attempt, so that a new one emits others."""

    @flow(name="stream")
    async def body(seed: int) -> int:
        attempt = current_run().attempt if changing else 0
        for number in range(chunks):
            await emit("number", [number, attempt])
            if number % 50 == 49:
                await asyncio.sleep(0.002)
        return chunks

    return body


# All of it in one

NUMBERS = (1, 2, 3)


@flow(name="grandchild")
async def sleeper(number: int) -> int:
    """A child that sleeps and emits."""
    await call(act, number)
    emit("child", number)
    await sleep(0.04)
    emit("child", number + 1)
    return number + 1


async def _numbers() -> list[int]:
    """The numbers in the order in which they came; who sends them again after a crash may send one twice."""
    got: list[int] = []
    while len(got) < len(NUMBERS):
        number = await receive("numbers")
        got += [] if number in got else [number]
    return got


@flow(name="everything")
async def everything(seed: int) -> list[Any]:
    """Calls, a question, messages, a sleep, a child and a stream."""
    emit("seen", 0)
    first = await call(act, 0)
    kid = spawn(sleeper, seed)
    emit("seen", 1)
    got, answer = await asyncio.gather(_numbers(), ask("Which number?", schema=int))
    emit("seen", 2)
    await sleep(0.04)
    beside, grown = await asyncio.gather(call.options(on_doubt="ask")(act_in_thread, 1), kid)
    emit("seen", 3)
    return [first, got, answer, beside, grown, await call(act, 2)]


def note(file: Path, text: str) -> None:
    """Add to a file outside of the store."""
    with file.open("a") as opened:
        opened.write(text)


async def run_everything(rt: Runtime, seed: int) -> Any:
    """Its result; what it waits for is given to it. Raises AssertionError when it goes on waiting all the same."""
    assert Outside.ledger is not None
    sent = Path(f"{Outside.ledger}.sent")
    try:
        return await asyncio.wait_for(_give_everything(rt, seed, sent), 20)
    except TimeoutError:
        run = await rt.get("a")
        stands = run and (run.status, run.owner, run.waiting_for, [ask async for ask in rt.asks("a")])
        raise AssertionError(f"it stands at {stands}, and {NUMBERS} were sent: {sent.read_text()}") from None


async def _give_everything(rt: Runtime, seed: int, sent: Path) -> Any:
    while True:
        with suppress(RunWaitingError):
            return await rt.run(everything, seed, id="a", until="settled")
        for number in NUMBERS:
            if not sent.exists() or str(number) not in sent.read_text():
                await rt.send("a", "numbers", number)
                note(sent, str(number))  # from here on nobody sends it again: it must not get lost
        async for asked in rt.asks("a"):
            told: Any = 42 if asked.question == "Which number?" else {"done": True, "result": "1:made"}
            with suppress(AnsweredError):
                await rt.answer("a", told, ask=asked.id)
        await asyncio.sleep(0.002)


SCENARIOS = {**FIVE_CALLS, "everything": run_everything}
