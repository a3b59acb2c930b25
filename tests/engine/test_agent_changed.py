"""Agents whose program has changed since a crash: what was done counts, and what is in doubt stays so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore
from holdfast import Agent, Phase, RetryPolicy
from holdfast.errors import RunFailedError, UsageError
from holdfast.flows.tools import tool
from holdfast.testing import ManualClock, ScriptedModel

TWO_CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "name": "charge", "arguments": {"amount": 20}},
        {"id": "b", "name": "slow", "arguments": {}},
    ],
}


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


def told(result: dict[str, Any]) -> list[str]:
    return [message["content"] for message in result["messages"] if message["role"] == "tool"]


async def cut_off(lives: Lives, charged: list[int], *, inside: bool) -> None:
    """Die while `slow` is under way: when `charge` is finished, or while it is under way too."""
    done, begun = asyncio.Event(), asyncio.Event()

    @tool(on_doubt="ask")
    async def charge(amount: int) -> str:
        charged.append(amount)
        if inside:
            await begun.wait()
            done.set()
            await asyncio.Event().wait()
        return f"receipt for {amount}"

    async def slow() -> None:
        begun.set()
        assert lives.store is not None
        if not inside:
            while not any(entry.kind == "call" for entry in await lives.store.read_entries("r1")):
                await asyncio.sleep(0)
            done.set()
        await asyncio.Event().wait()

    await lives.cut(Agent("clerk", ScriptedModel([TWO_CALLS]), [charge, slow]), "go", at=done)
    assert charged == [20]


def changed(how: str, charged: list[int]) -> Agent:
    @tool(on_doubt="ask", approval=how == "has to be approved")
    async def charge(amount: int) -> str:
        charged.append(amount)
        return "again"

    @tool(name="charge")
    async def charge_in(amount: int, currency: str) -> str:
        charged.append(amount)
        return "again"

    async def slow() -> str:
        return "slow"

    tools = {"is gone": [], "takes more": [charge_in], "has to be approved": [charge]}[how]
    return Agent("clerk", ScriptedModel([TWO_CALLS, "done"]), [*tools, slow])


@pytest.mark.parametrize("how", ["is gone", "takes more", "has to be approved"])
async def test_a_call_that_finished_counts_though_its_tool(lives: Lives, how: str) -> None:
    charged: list[int] = []
    await cut_off(lives, charged, inside=False)
    assert told(await lives.finish(changed(how, charged), "go")) == ["receipt for 20", "slow"]
    assert charged == [20]


@pytest.mark.parametrize(("done", "says"), [(True, "receipt 7"), (False, "error: there is no tool 'charge'")])
async def test_a_call_in_doubt_is_asked_about_though_its_tool_is_gone(lives: Lives, done: bool, says: str) -> None:
    charged: list[int] = []
    await cut_off(lives, charged, inside=True)
    async with lives.runtime() as rt:
        running = asyncio.ensure_future(rt.run(changed("is gone", charged), "go", id="r1"))
        async with asyncio.timeout(10):
            while not [one async for one in rt.asks("r1")]:
                await asyncio.sleep(0)
        await rt.answer("r1", {"done": True, "result": "receipt 7"} if done else {"done": False})
        assert told(await running)[0].startswith(says)
    assert charged == [20]


async def test_a_run_finds_its_phase_by_its_name_when_others_are_put_in_or_taken_out(
    make_runtime: MakeRuntime,
) -> None:
    def fail(messages: list[Any]) -> Any:
        raise ConnectionError("no line")

    def agent(*phases: str, last: Any) -> Agent:
        return Agent("writer", ScriptedModel(["found", last]), phases=[Phase(name) for name in phases])

    for place, phases in enumerate([("check", "research", "write"), ("write",), ("research", "check", "write")]):
        async with make_runtime() as rt:
            with pytest.raises(RunFailedError):
                await rt.run(agent("research", "write", last=fail), "go", id=f"r{place}")
        async with make_runtime() as rt:
            rt.register(agent(*phases, last="written"))
            result = await (await rt.resume(f"r{place}")).result()
        assert (result["finished"], result["output"]) == (["research", "write"], "written")


async def test_the_retry_of_the_model_does_not_call_a_tool_again_that_fails_the_run(make_runtime: MakeRuntime) -> None:
    called = []

    @tool(on_error="raise")
    async def charge(amount: int) -> str:
        called.append(amount)
        raise ConnectionError("no line")

    call = {**TWO_CALLS, "tool_calls": TWO_CALLS["tool_calls"][:1]}  # type: ignore[index]
    again = RetryPolicy(attempts=4, first_delay=0)
    async with make_runtime(retry=again) as rt:
        with pytest.raises(RunFailedError, match="ConnectionError: no line") as failed:
            await rt.run(Agent("clerk", ScriptedModel([call]), [charge], retry=again), "go", id="r1")
        assert isinstance(failed.value.__cause__, ConnectionError)
    assert called == [20]


@pytest.mark.parametrize("state", ["hello", [{"role": "user", "content": "hello"}], {"messages": "hello"}])
async def test_a_fork_takes_what_a_run_begins_with_for_its_state(make_runtime: MakeRuntime, state: Any) -> None:
    agent = Agent("clerk", ScriptedModel(["answer"]))
    async with make_runtime() as rt:
        await rt.run(agent, "go", id="r1")
        result = await (await rt.fork("r1@1", state=state)).result()
        assert [message["content"] for message in result["messages"]] == ["hello", "answer"]
        with pytest.raises(UsageError, match="begins with a text"):
            await rt.fork("r1@1", state={"message": "hello"})


@pytest.mark.parametrize("said", [{"text": "more"}, None, 7])
async def test_whatever_is_sent_to_a_conversation_is_heard_as_a_text(make_runtime: MakeRuntime, said: Any) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        inside.set()
        await gate.wait()
        return "slow"

    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "name": "slow", "arguments": {}}]}
    async with make_runtime() as rt:
        handle = await rt.start(Agent("clerk", ScriptedModel([call, "heard", "heard"]), [slow]), "go", id="r1")
        await inside.wait()
        await rt.send("r1", "holdfast.user", said)
        gate.set()
        result = await handle.result()
    heard = [message["content"] for message in result["messages"] if message["role"] == "user"]
    assert heard[0] == "go"
    assert all(type(text) is str for text in heard)
    assert len(heard) == 2
