"""An agent: models of every kind, what they may answer, phases, and what is said while the conversation goes on."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator
from typing import Any

import pydantic
import pytest

from conftest import MakeRuntime
from exactly import exactly
from holdfast import Agent, RetryPolicy, step
from holdfast.errors import (
    ModelAnswerError,
    NotStorableError,
    RunFailedError,
    StepTimeoutError,
    UsageError,
)
from holdfast.testing import ScriptedModel, wants

TWICE = RetryPolicy(attempts=2, first_delay=0.0)
Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


# Models


def plain(messages: Messages, tools: list[Any]) -> str:
    assert threading.current_thread() is not threading.main_thread()
    return f"heard {messages[-1]['content']}"


async def awaited(messages: Messages, tools: list[Any]) -> dict[str, Any]:
    return assistant(f"heard {messages[-1]['content']}")


async def streamed(messages: Messages, tools: list[Any]) -> AsyncIterator[Any]:
    yield "heard "
    yield {"content": messages[-1]["content"]}


def returns_awaitable(messages: Messages, tools: list[Any]) -> Any:
    return awaited(messages, tools)


def returns_stream(messages: Messages, tools: list[Any]) -> Any:
    return streamed(messages, tools)


async def awaits_stream(messages: Messages, tools: list[Any]) -> Any:
    return streamed(messages, tools)


class Client:
    """A callable object, and methods."""

    def __call__(self, messages: Messages, tools: list[Any]) -> str:
        return plain(messages, tools)

    async def ask(self, messages: Messages, tools: list[Any]) -> Any:
        return await awaited(messages, tools)


class AsyncClient:
    async def __call__(self, messages: Messages, tools: list[Any]) -> Any:
        return await awaited(messages, tools)


class StreamingClient:
    async def __call__(self, messages: Messages, tools: list[Any]) -> AsyncIterator[Any]:
        async for chunk in streamed(messages, tools):
            yield chunk


async def with_temperature(temperature: float, messages: Messages, tools: list[Any]) -> Any:
    return await awaited(messages, tools)


async def streamed_at(temperature: float, messages: Messages, tools: list[Any]) -> AsyncIterator[Any]:
    async for chunk in streamed(messages, tools):
        yield chunk


class Reply(pydantic.BaseModel):
    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None


async def an_object(messages: Messages, tools: list[Any]) -> Reply:
    return Reply(content=f"heard {messages[-1]['content']}")


@pytest.mark.parametrize(
    "model",
    [
        plain,
        awaited,
        streamed,
        returns_awaitable,
        returns_stream,
        awaits_stream,
        Client(),
        Client().ask,
        AsyncClient(),
        StreamingClient(),
        functools.partial(with_temperature, 0.5),
        functools.partial(streamed_at, 0.5),
        step(awaited),
        an_object,
        lambda messages, tools: f"heard {messages[-1]['content']}",
    ],
)
async def test_a_model_is_any_function_of_messages_and_tools(make_runtime: MakeRuntime, model: Any) -> None:
    async with make_runtime() as rt:
        result = await rt.run(Agent("talk", model), "hello", id="r1")
    assert result == {
        "messages": [user("hello"), assistant("heard hello")],
        "iteration": 1,
        "phase": None,
        "finished": [],
        "output": "heard hello",
    }
    assert list(result["messages"][-1]) == ["role", "content"]


async def test_the_model_hears_the_instructions_first_and_they_are_no_part_of_the_transcript(
    make_runtime: MakeRuntime,
) -> None:
    heard: list[Any] = []

    def add(a: int) -> int:
        """One more."""
        return a + 1

    async def model(messages: Messages, tools: list[Any]) -> str:
        heard.append((list(messages), tools))
        return "yes"

    async with make_runtime() as rt:
        result = await rt.run(Agent("talk", model, [add], "Be brief."), [user("a"), assistant("b"), user("c")], id="r1")
    [(messages, tools)] = heard
    assert messages == [{"role": "system", "content": "Be brief."}, user("a"), assistant("b"), user("c")]
    assert [(tool["name"], tool["description"]) for tool in tools] == [("add", "One more.")]
    assert result["messages"] == [*messages[1:], assistant("yes")]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (["a", "b"], assistant("ab")),
        ([{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}], assistant("ab")),
        (["a", "b", assistant("a b")], assistant("a b")),
        ([assistant("The "), assistant("tide")], assistant("The tide")),
        ([assistant("The "), assistant("tide"), assistant("The tide")], assistant("The tide")),
        ([assistant("1"), assistant("1")], assistant("11")),
        (
            [{"role": "assistant", "tool_calls": [{"index": 0, "id": "t", "name": "tick"}]}, wants("tick", id="t")],
            wants("tick", id="t"),
        ),
        (["thinking ", wants("tick")], wants("tick")),
        ([{"tool_calls": [{"id": "t", "name": "tick"}]}, wants("tick", id="t")], wants("tick", id="t")),
        (
            [
                {"role": "assistant", "content": None},
                {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "tick", "arguments": ""}}]},
                {"tool_calls": [{"index": 1, "id": "u", "function": {"name": "tick", "arguments": "{}"}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": '{"n"'}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": ": 3}"}}]},
            ],
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "t", "function": {"name": "tick", "arguments": '{"n": 3}'}},
                    {"id": "u", "function": {"name": "tick", "arguments": "{}"}},
                ],
            },
        ),
        ([Reply(content="a"), {"content": "b"}, {"model": "m-1"}], {**assistant("ab"), "model": "m-1"}),
    ],
)
async def test_chunks_are_emitted_as_they_come_and_make_one_message(
    make_runtime: MakeRuntime, chunks: list[Any], message: dict[str, Any]
) -> None:
    def tick(n: int = 0) -> int:
        return n

    async def model(messages: Messages, tools: list[Any]) -> AsyncIterator[Any]:
        if len(messages) > 1:
            yield "done"
            return
        for chunk in chunks:
            yield chunk

    async with make_runtime() as rt:
        result = await rt.run(Agent("talk", model, [tick]), "go", id="r1")
        emitted = [event.data async for event in rt.events("r1") if event.type == "emitted"]
    assert result["messages"][1] == message
    plainly = [chunk if isinstance(chunk, (str, dict)) else chunk.model_dump(exclude_none=True) for chunk in chunks]
    assert [chunk["data"] for chunk in emitted][: len(chunks)] == plainly
    assert {chunk["name"] for chunk in emitted} == {"model"}


@pytest.mark.parametrize(
    ("nonsense", "says"),
    [
        (None, "NoneType None, which is no message"),
        (7, "int 7"),
        ({"role": "user", "content": "x"}, "a message of role 'user'"),
        ({"content": 7}, "content of type int"),
        ({"content": None}, "neither content nor tool calls"),
        ({}, "neither content nor tool calls"),
        ({"tool_calls": "tick"}, "tool_calls of type str"),
        ({"tool_calls": ["tick"]}, "tool call 1, which is no object"),
        ({"tool_calls": [{"id": "t"}]}, "tool call 1 without a name"),
        ({"tool_calls": [{"id": 7, "name": "tick"}]}, "tool call 1 with an id that is no text: 7"),
        ({"tool_calls": [{"id": "t", "name": "a"}, {"id": "t", "name": "b"}]}, "two tool calls of the same id: 't'"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async", "stream"])
async def test_an_answer_that_is_no_message_names_agent_and_iteration_and_the_run_goes_on_later(
    make_runtime: MakeRuntime, nonsense: Any, says: str, kind: str
) -> None:
    sane = False

    def answer() -> Any:
        return "hello" if sane else nonsense

    async def coming(messages: Messages, tools: list[Any]) -> Any:
        return answer()

    async def stream(messages: Messages, tools: list[Any]) -> AsyncIterator[Any]:
        yield answer()

    model: Any = {"def": lambda messages, tools: answer(), "async": coming, "stream": stream}[kind]
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError) as failed:
            await rt.run(Agent("talk", model), "hi", id="r1")
        cause = failed.value.__cause__
        assert isinstance(cause, ModelAnswerError)
        assert str(cause).startswith("the model of agent 'talk' answered iteration 1 with ")
        assert kind == "stream" or says in str(cause)
        sane = True
        result = await (await rt.resume("r1")).result()
    assert result["messages"] == [user("hi"), assistant("hello")]


async def test_a_chunk_that_is_none_fails_the_turn_by_name(make_runtime: MakeRuntime) -> None:
    async def model(messages: Messages, tools: list[Any]) -> AsyncIterator[Any]:
        yield "a"
        yield 7

    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="answered iteration 1 with a chunk of type int"):
            await rt.run(Agent("talk", model), "hi", id="r1")


async def test_a_model_that_fails_or_talks_nonsense_is_asked_again_by_the_retry_policy(
    make_runtime: MakeRuntime,
) -> None:
    answers: list[Any] = [ConnectionError("busy"), 7, "hello"]

    async def model(messages: Messages, tools: list[Any]) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with make_runtime() as rt:
        agent = Agent("talk", model, retry=RetryPolicy(attempts=3, first_delay=0.0))
        result = await rt.run(agent, "hi", id="r1")
        failed = [event.error async for event in rt.events("r1") if event.type == "step_failed"]
    assert result["output"] == "hello"
    assert [error.split(":")[0] for error in failed if error] == ["ConnectionError", "ModelAnswerError"]


@pytest.mark.parametrize("retried", [True, False])
async def test_a_model_that_takes_too_long_is_given_up(make_runtime: MakeRuntime, retried: bool) -> None:
    asked = 0

    async def model(messages: Messages, tools: list[Any]) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()
        return "hello"

    async with make_runtime() as rt:
        agent = Agent("talk", model, timeout=0.05, retry=TWICE if retried else None)
        if retried:
            assert (await rt.run(agent, "hi", id="r1"))["output"] == "hello"
            return
        with pytest.raises(RunFailedError) as failed:
            await rt.run(agent, "hi", id="r1")
        assert isinstance(failed.value.__cause__, StepTimeoutError)
        assert "'model' took longer than its timeout of 0.05 s" in str(failed.value)


async def test_the_options_of_a_model_that_is_a_step_count(make_runtime: MakeRuntime) -> None:
    asked = 0

    @step(retry=TWICE, timeout=0.05)
    async def model(messages: Messages, tools: list[Any]) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            await asyncio.Event().wait()
        return "hello"

    async with make_runtime() as rt:
        assert (await rt.run(Agent("talk", model), "hi", id="r1"))["iteration"] == 1
    assert asked == 2


async def test_a_message_keeps_what_json_lacks(make_runtime: MakeRuntime) -> None:
    odd = {"role": "assistant", "content": "x", "usage": (1, 2), "raw": b"\x00", "seen": {1, 2}, 7: "\ud800"}

    async with make_runtime() as rt:
        result = await rt.run(Agent("talk", ScriptedModel([odd])), [{**user("hi"), "at": (1,)}], id="r1")
        stored = await rt.load("r1")
    assert exactly(result["messages"]) == exactly([{**user("hi"), "at": (1,)}, odd])
    assert stored is not None
    assert exactly(stored.state) == exactly(result)


async def test_a_message_that_cannot_be_stored_is_refused_by_its_place(make_runtime: MakeRuntime) -> None:
    model = ScriptedModel([{"content": "x", "client": object()}])
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError) as failed:
            await rt.run(Agent("talk", model), "hi", id="r1")
    assert isinstance(failed.value.__cause__, NotStorableError)
    assert "state.messages[1].client" in str(failed.value)


# What it begins with


async def test_the_end_of_one_conversation_is_the_beginning_of_another(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        talk = Agent("talk", ScriptedModel(["one", "two"]))
        first = await rt.run(talk, "a", id="r1")
        second = await rt.run(talk, {**first, "messages": [*first["messages"], user("b")]}, id="r2")
    assert second["messages"] == [user("a"), assistant("one"), user("b"), assistant("two")]
    assert second["iteration"] == 1


async def test_without_input_the_instructions_are_all_there_is(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        result = await rt.run(Agent("talk", awaited, instructions="say something"), id="r1")
    assert result["messages"] == [assistant("heard say something")]


async def test_tool_calls_that_the_input_leaves_open_are_answered_first(make_runtime: MakeRuntime) -> None:
    def double(n: int) -> int:
        return 2 * n

    calls = [{"id": name, "name": "double", "arguments": {"n": n}} for n, name in enumerate("abc")]
    begun = [user("go"), {"role": "assistant", "content": None, "tool_calls": calls}]
    answered = {"role": "tool", "tool_call_id": "b", "name": "double", "content": "2"}
    async with make_runtime() as rt:
        result = await rt.run(Agent("talk", ScriptedModel(["", "done"]), [double]), [*begun, answered], id="r1")
    assert [(m["tool_call_id"], m["content"]) for m in result["messages"][3:5]] == [("a", "0"), ("c", "4")]


@pytest.mark.parametrize(
    "input", [7, {"topic": "x"}, ["hi"], [{"content": "x"}], ("hi",), [{"role": "x", "tool_calls": 1}]]
)
async def test_input_that_is_no_conversation_is_refused_and_nothing_runs(make_runtime: MakeRuntime, input: Any) -> None:
    model = ScriptedModel(["x"])
    async with make_runtime() as rt:
        with pytest.raises(UsageError, match="agent talk begins with"):
            await rt.run(Agent("talk", model), input, id="r1")
        assert await rt.get("r1") is None
    assert model.calls == 0
