"""An agent's phases and limits, and what is said to it while the conversation goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from conftest import MakeRuntime
from holdfast import Agent, Phase, ask, blocking
from holdfast.errors import RunFailedError, StepMissingError, TooManyStepsError, UsageError, VerbRefusedError
from holdfast.testing import ScriptedModel, wants
from waiting import until_status

Messages = list[dict[str, Any]]


async def awaited(messages: Messages, tools: list[Any]) -> str:
    return f"heard {messages[-1]['content']}"


# Phases


def phased(model: Any, *phases: Phase, **options: Any) -> Agent:
    return Agent("work", model, phases=phases, **options)


async def test_phases_have_their_own_instructions_tools_and_prompts(make_runtime: MakeRuntime) -> None:
    heard: list[Any] = []

    def search(word: str) -> str:
        return f"all about {word}"

    def publish(text: str) -> str:
        return "published"

    script = ScriptedModel([wants("search", word="tides"), "known", wants("publish", text="x"), "out"])

    async def model(messages: Messages, tools: list[Any]) -> Any:
        heard.append((messages[0]["content"], [tool["name"] for tool in tools]))
        return await script(messages, tools)

    agent = phased(
        model,
        Phase("research", instructions="Look around."),
        Phase("write", instructions="Write.", tools=[publish], prompt="Write it down."),
        instructions="Be good.",
        tools=[search],
    )
    async with make_runtime() as rt:
        result = await rt.run(agent, "tides", id="r1")
        run = await rt.get("r1")
        states = [checkpoint async for checkpoint in rt.checkpoints("r1")]
    assert heard == [("Be good.\n\nLook around.", ["search"])] * 2 + [("Be good.\n\nWrite.", ["publish"])] * 2
    assert [m["content"] for m in result["messages"] if m["role"] == "user"] == ["tides", "Write it down."]
    assert (result["phase"], result["finished"], result["output"]) == ("write", ["research", "write"], "out")
    assert run is not None
    assert (run.step_names, run.step) == (("research", "write"), 4)
    assert [(c.next, c.state["phase"], c.state["iteration"]) for c in states] == [
        ("research", "research", 0),
        ("research", "research", 1),
        ("write", "write", 0),
        ("write", "write", 1),
        (None, "write", 2),
    ]


async def test_two_phases_of_one_name_both_run(make_runtime: MakeRuntime) -> None:
    agent = phased(
        ScriptedModel(["one", "two", "three"]), Phase("think"), Phase("write"), Phase("think", prompt="more")
    )
    async with make_runtime() as rt:
        result = await rt.run(agent, "go", id="r1")
    assert result["finished"] == ["think", "write", "think"]
    assert [m["content"] for m in result["messages"]] == ["go", "one", "two", "more", "three"]


async def test_the_first_phase_may_begin_with_a_prompt(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        result = await rt.run(phased(ScriptedModel(["x"]), Phase("a", prompt="go")), "tides", id="r1")
    assert [m["content"] for m in result["messages"]] == ["tides", "go", "x"]


def again(n: int = 0) -> int:
    return n


@pytest.mark.parametrize("limit", ["agent", "phase"])
async def test_after_max_iterations_the_run_fails_and_goes_on_when_more_are_allowed(
    make_runtime: MakeRuntime, limit: str
) -> None:
    def agent(most: int) -> Agent:
        model = ScriptedModel([*(wants("again", n=n) for n in range(3)), "enough"])
        own = {"max_iterations": most}
        if limit == "agent":
            return Agent("work", model, [again], phases=[Phase("loop")], **own)
        return Agent("work", model, [again], phases=[Phase("loop", **own)], max_iterations=1)

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError) as failed:
            await rt.run(agent(3), "go", id="r1")
        assert isinstance(failed.value.__cause__, TooManyStepsError)
        assert "agent 'work'" in str(failed.value)
        assert "iteration 4 of phase 'loop'" in str(failed.value)
    async with make_runtime() as rt:
        rt.register(agent(4))
        result = await (await rt.resume("r1")).result()
    assert (result["iteration"], result["output"]) == (4, "enough")


async def test_a_run_whose_phase_is_gone_says_so_and_is_unchanged(make_runtime: MakeRuntime) -> None:
    broken = True

    async def model(messages: Messages, tools: list[Any]) -> str:
        if broken and len(messages) == 2:
            raise ConnectionError("no")
        return "x"

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError):
            await rt.run(phased(model, Phase("one"), Phase("two")), "go", id="r1")
    broken = False
    for phases in ([Phase("one")], [Phase("one"), Phase("other")]):
        async with make_runtime() as rt:
            rt.register(phased(model, *phases))
            with pytest.raises(StepMissingError, match="step 'two', which flow 'work' does not have"):
                await (await rt.resume("r1")).result()
    async with make_runtime() as rt:
        rt.register(phased(model, Phase("one"), Phase("two")))
        run = await rt.get("r1")
        assert run is not None
        handle = await rt.resume("r1")
        assert (await handle.result())["finished"] == ["one", "two"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": ""}, "name of an agent"),
        ({"model": "gpt"}, "a model is a function"),
        ({"max_iterations": 0}, "max_iterations=0"),
        ({"max_iterations": True}, "max_iterations=True"),
        ({"phases": []}, "empty list of phases"),
        ({"phases": ["write"]}, "'write' is no phase"),
        ({"phases": [Phase("a", max_iterations=0)]}, "max_iterations=0"),
        ({"phases": [Phase("a" * 201)]}, "name of a phase"),
        ({"tools": [again, again]}, "two tools named 'again'"),
        ({"phases": [Phase("a", tools=[again, again])]}, "two tools named 'again'"),
        ({"timeout": 0}, "timeout=0"),
        ({"retry": 3}, "RetryPolicy"),
        ({"policy": 3}, "CheckpointPolicy"),
        ({"tools": [7]}, "a step is a function"),
        ({"tools": again}, "its tools are a list of functions"),
    ],
)
def test_what_could_never_run_is_refused_when_it_is_declared(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Agent(**{"name": "work", "model": awaited, **options})


# What is said meanwhile


async def test_what_is_sent_while_the_conversation_goes_on_is_heard_once_and_in_order(
    make_runtime: MakeRuntime,
) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        inside.set()
        await gate.wait()
        return "seen"

    async with make_runtime() as rt:
        agent = Agent("talk", ScriptedModel([wants("look"), "done"]), [look])
        handle = await rt.start(agent, "go", id="r1")
        await inside.wait()
        await agent.send(handle, "one")
        await rt.send("r1", "holdfast.user", "two")
        gate.set()
        result = await handle.result()
    assert [m["content"] for m in result["messages"]] == ["go", None, "seen", "one", "two", "done"]


async def test_what_is_sent_during_the_last_answer_makes_the_conversation_go_on(make_runtime: MakeRuntime) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    script = ScriptedModel(["done", "really done"])

    async def model(messages: Messages, tools: list[Any]) -> Any:
        if not inside.is_set():
            inside.set()
            await gate.wait()
        return await script(messages, tools)

    async with make_runtime() as rt:
        agent = Agent("talk", model)
        handle = await rt.start(agent, "go", id="r1")
        await inside.wait()
        await agent.send(handle, "wait, one more")
        gate.set()
        result = await handle.result()
        with pytest.raises(VerbRefusedError):
            await agent.send(handle, "too late")
    assert [m["content"] for m in result["messages"]] == ["go", "done", "wait, one more", "really done"]


async def test_what_is_sent_to_a_conversation_that_waits_is_heard_when_it_goes_on(make_runtime: MakeRuntime) -> None:
    async def ask_user(question: str) -> str:
        return str(await ask(question, schema=str))

    async with make_runtime() as rt:
        agent = Agent("talk", ScriptedModel([wants("ask_user", question="Which?"), "done"]), [ask_user])
        handle = await rt.start(agent, "go", id="r1")
        await until_status(rt, "r1", "waiting")
        for text in ("one", "two"):
            await agent.send(handle, text)
        await until_status(rt, "r1", "waiting")
        async with make_runtime() as other:
            await other.answer("r1", "this one")
        result = await handle.result()
    assert [m["content"] for m in result["messages"]] == ["go", None, "this one", "one", "two", "done"]


@pytest.mark.parametrize("text", [None, 7, {"role": "user"}])
async def test_what_is_no_text_is_not_sent(make_runtime: MakeRuntime, text: Any) -> None:
    agent = Agent("talk", awaited)
    with pytest.raises(UsageError, match="a user says a text"):
        agent.send(None, text)


async def test_an_agent_is_spoken_to_from_a_program_without_a_loop() -> None:
    def program() -> list[Any]:
        inside, gate = threading.Event(), threading.Event()

        def look() -> str:
            inside.set()
            gate.wait(20)
            return "seen"

        agent = Agent("talk", ScriptedModel([wants("look"), "done"]), [look])
        with blocking.Runtime("memory:") as rt:
            handle = rt.start(agent, "go", id="r1")
            inside.wait(20)
            agent.send(handle, "hello")
            gate.set()
            return [message["content"] for message in handle.result()["messages"]]

    assert await asyncio.to_thread(program) == ["go", None, "seen", "hello", "done"]


async def test_what_a_reader_of_the_result_does_to_it_changes_nothing(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        result = await rt.run(Agent("talk", awaited), "hi", id="r1")
        result["messages"].clear()
        assert len((await rt.run(Agent("talk", awaited), "hi", id="r1"))["messages"]) == 2
