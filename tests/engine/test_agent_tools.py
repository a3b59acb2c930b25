"""The tools of an agent: typed, called at once, failing without harm, never repeated unasked."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from conftest import MakeRuntime
from exactly import exactly
from holdfast import Agent, RetryPolicy, Runtime, call, current_run, step
from holdfast.errors import RunFailedError, UsageError
from holdfast.flows.tools import Tool, tool
from holdfast.testing import ScriptedModel, wants


@dataclass
class Point:
    x: int
    y: int = 0


class Range(pydantic.BaseModel):
    low: int
    high: int

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Range:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


async def told(make_runtime: MakeRuntime, tools: list[Any], *calls: dict[str, Any], **options: Any) -> list[str]:
    """What the model is told of each of these calls, all of which are in one message."""
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    async with make_runtime() as rt:
        result = await rt.run(Agent("work", ScriptedModel([message, "done"]), tools, **options), "go", id="r1")
        stored = await rt.load("r1")
        assert stored is not None
        assert exactly(stored.state) == exactly(result)
    answers = result["messages"][2:-1]
    assert [answer["name"] for answer in answers] == [(call.get("function") or call)["name"] for call in calls]
    assert all(answer["role"] == "tool" for answer in answers)
    return [answer["content"] for answer in answers]


def asks_for(name: str, arguments: Any = None, id: str = "t1") -> dict[str, Any]:
    return {"id": id, "name": name, "arguments": arguments}


# What a model is shown


def test_the_schema_of_a_tool_comes_from_its_annotations() -> None:
    def book(
        city: str,
        nights: int,
        kind: Literal["single", "double"] = "single",
        at: Point | None = None,
        note: Annotated[str, msgspec.Meta(description="for the host")] = "",
    ) -> str:
        """Book a room."""
        return city

    shown = Tool(book).shown
    assert (shown["name"], shown["description"]) == ("book", "Book a room.")
    schema = shown["parameters"]
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["city", "nights"], False)
    assert schema["properties"]["nights"] == {"type": "integer"}
    assert schema["properties"]["kind"] == {"enum": ["double", "single"], "default": "single"}
    assert schema["properties"]["note"] == {"type": "string", "description": "for the host", "default": ""}
    assert schema["properties"]["at"]["default"] is None
    assert schema["$defs"]["Point"]["required"] == ["x"]


def test_a_tool_keeps_its_function_and_may_have_another_name() -> None:
    @tool(name="sum", description="Adds.")
    def add(a: int, b: int) -> int:
        return a + b

    assert add(1, 2) == 3
    assert add.shown["name"] == "sum"
    assert add.shown["description"] == "Adds."
    assert repr(add) == "<tool sum>"


def _any(*names: str) -> None: ...
def _only(name: str, /) -> None: ...
def _open(**names: str) -> None: ...
def _unknown(name: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _no_json(name: threading.Lock) -> None: ...
def _any_time() -> None: ...
async def _later() -> None: ...


@pytest.mark.parametrize(
    ("fn", "options", "says"),
    [
        (_any, {}, "parameter 'names' cannot be named"),
        (_only, {}, "parameter 'name' cannot be named"),
        (_open, {}, "parameter 'names' cannot be named"),
        (_unknown, {}, "tool '_unknown': its annotations name what is not known"),
        (_no_json, {}, "tool '_no_json': parameter 'name'"),
        (_later, {"on_error": "ignore"}, "on_error='ignore'"),
        (_later, {"on_doubt": "maybe"}, "on_doubt='maybe'"),
        (_later, {"approval": "yes"}, "approval='yes'"),
        (_later, {"timeout": 0}, "timeout=0"),
        (_later, {"retry": 2}, "RetryPolicy"),
        (_later, {"name": "x" * 201}, "1 to 200 characters"),
        (7, {}, "a function"),
        (_any_time, {"executor": ProcessPoolExecutor(1)}, "tool '_any_time' cannot run in a process pool"),
    ],
)
def test_a_tool_that_no_model_could_call_is_refused_when_it_is_declared(fn: Any, options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Tool(fn, **options)


# Arguments


async def test_arguments_come_as_the_types_that_were_declared(make_runtime: MakeRuntime) -> None:
    got: list[Any] = []

    def plain(n: int, kind: Literal["a", "b"], point: Point, range: Range, day: date, extra: list[Point] | None = None):  # type: ignore[no-untyped-def]
        got.append((n, kind, point, range, day, extra))

    async def coming(point: Point) -> None:
        got.append(point)

    arguments = {
        "n": 3,
        "kind": "b",
        "point": {"x": 1},
        "range": {"low": 1, "high": 2},
        "day": "2026-01-02",
        "extra": [{"x": 5, "y": 6}],
    }
    text = msgspec.json.encode(arguments).decode()
    answers = await told(
        make_runtime,
        [plain, coming],
        asks_for("plain", arguments, "a"),
        {"id": "b", "type": "function", "function": {"name": "plain", "arguments": text}},
        {"id": "c", "name": "coming", "input": {"point": {"x": 7}}},
    )
    whole = (3, "b", Point(1), Range(low=1, high=2), date(2026, 1, 2), [Point(5, 6)])
    assert sorted(got, key=repr) == sorted([whole, whole, Point(7)], key=repr)
    assert answers == ["null"] * 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"n": 1', "arguments: they are not JSON"),
        ("[1]", "arguments: [1] is not of type 'object'"),
        ("7", "arguments: 7 is not of type 'object'"),
        ({}, "'n' is a required property"),
        (None, "'n' is a required property"),
        ("", "'n' is a required property"),
        ({"n": "three"}, "arguments.n: 'three' is not of type 'integer'"),
        ({"n": 1, "m": 2}, "'m' was unexpected"),
        (
            {"n": 1, "range": {"low": 3, "high": 1}},
            "arguments.range: 1 validation error for Range Value error, low is above high",
        ),
        ({"n": float("nan")}, "not JSON data"),
        ('{"n": ' + "[" * 100_000, "nested too deeply"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model_and_the_tool_is_not_called(
    make_runtime: MakeRuntime, arguments: Any, says: str
) -> None:
    called = []

    @tool(on_error="raise", approval=True)  # neither a failure of the tool nor anything to approve
    def count(n: int, range: Range | None = None) -> None:
        called.append(n)

    [answer] = await told(make_runtime, [count], asks_for("count", arguments))
    assert answer.startswith("error: these arguments do not fit the tool: arguments")
    assert says in answer
    assert called == []


async def test_a_tool_that_does_not_exist_is_told_with_those_that_do(make_runtime: MakeRuntime) -> None:
    def look() -> str:
        return "seen"

    answers = await told(make_runtime, [look], asks_for("lok", id="a"), asks_for("look", id="b"))
    assert answers == ["error: there is no tool 'lok' (there are: look)", "seen"]
    async with make_runtime() as rt:
        result = await rt.run(Agent("bare", ScriptedModel([wants("look"), "done"])), "go", id="r2")
    assert result["messages"][2]["content"] == "error: there is no tool 'look' (there are: none)"


async def test_calls_without_ids_get_one_that_no_other_call_has(make_runtime: MakeRuntime) -> None:
    def echo(n: int) -> int:
        return n

    def calls(*numbers: int) -> dict[str, Any]:
        named = [{"name": "echo", "arguments": {"n": n}} for n in numbers]
        return {"content": None, "tool_calls": [named[0], {**named[1], "id": None}, {**named[2], "id": ""}]}

    async with make_runtime() as rt:
        model = ScriptedModel([calls(1, 2, 3), calls(4, 5, 6), "done"])
        result = await rt.run(Agent("work", model, [echo]), "go", id="r1")
    asked = [call["id"] for message in result["messages"] for call in message.get("tool_calls", ())]
    answered = [(m["tool_call_id"], m["content"]) for m in result["messages"] if m["role"] == "tool"]
    assert len(set(asked)) == 6
    assert answered == list(zip(asked, "123456", strict=True))


@pytest.mark.parametrize("id", ["x" * 5000, "\ud800", "a/b:c=d(e)%", "é" * 150], ids=["long", "lone", "signs", "wide"])
async def test_an_id_may_be_any_text(make_runtime: MakeRuntime, id: str) -> None:
    def echo(n: int) -> int:
        return n

    calls = [asks_for("echo", {"n": 1}, id), asks_for("echo", {"n": 2}, id + "x")]
    assert await told(make_runtime, [echo], *calls) == ["1", "2"]


async def test_an_id_that_comes_again_in_a_later_message_is_another_call(make_runtime: MakeRuntime) -> None:
    numbers = []

    def note(n: int) -> str:
        numbers.append(n)
        return f"noted {n}"

    async with make_runtime() as rt:
        model = ScriptedModel([wants("note", id="x", n=1), wants("note", id="x", n=2), "done"])
        result = await rt.run(Agent("work", model, [note]), "go", id="r1")
    assert numbers == [1, 2]
    assert [m["content"] for m in result["messages"] if m["role"] == "tool"] == ["noted 1", "noted 2"]


# Calling


@pytest.mark.parametrize("kind", ["def", "async"])
async def test_several_calls_of_one_message_run_at_once_and_are_answered_in_their_order(
    make_runtime: MakeRuntime, kind: str
) -> None:
    # Each waits for all three to be there.
    barrier, meeting = threading.Barrier(3, timeout=20), asyncio.Barrier(3)

    def meet(n: int) -> int:
        barrier.wait()
        return n

    async def meet_async(n: int) -> int:
        await meeting.wait()
        return n

    chosen = Tool(meet if kind == "def" else meet_async, name="meet")
    answers = await told(make_runtime, [chosen], *(asks_for("meet", {"n": n}, f"t{n}") for n in (3, 1, 2)))
    assert answers == ["3", "1", "2"]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        (3, "3"),
        ({"a": [1, 2.5, True]}, '{"a":[1,2.5,true]}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (Range(low=1, high=2), '{"low":1,"high":2}'),
        ([Range(low=1, high=2)], '[{"low":1,"high":2}]'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (3 + 4j, "(3+4j)"),
        pytest.param("\ud800" * 100, "\ud800" * 100, id="surrogates"),
    ],
)
async def test_what_a_tool_gives_is_told_as_text(make_runtime: MakeRuntime, result: Any, text: str) -> None:
    def give() -> Any:
        return result

    assert await told(make_runtime, [give], asks_for("give")) == [text]


async def test_a_tool_that_fails_is_told_to_the_model_and_the_others_are_not_harmed(make_runtime: MakeRuntime) -> None:
    def bad() -> str:
        raise LookupError("no such page")

    async def cut() -> str:
        raise asyncio.CancelledError("from inside")

    def leave() -> str:
        raise SystemExit(3)

    def good() -> str:
        return "fine"

    names = ["bad", "cut", "leave", "good"]
    calls = [asks_for(name, id=name) for name in names]
    answers = await told(make_runtime, [bad, cut, leave, good], *calls)
    assert answers[0] == "error: LookupError: no such page"
    assert answers[1].startswith("error: ")
    assert "SystemExit" in answers[2]
    assert answers[3] == "fine"


async def test_with_on_error_raise_a_failure_fails_the_run_which_goes_on_without_repeating_the_others(
    make_runtime: MakeRuntime,
) -> None:
    broken, counted = True, {"good": 0, "slow": 0}
    failed_once = asyncio.Event()

    @tool(on_error="raise")
    async def bad() -> str:
        if broken:
            failed_once.set()
            raise LookupError("no such page")
        return "mended"

    async def good() -> str:
        counted["good"] += 1
        return "fine"

    async def slow() -> str:
        await failed_once.wait()  # still under way when the other one fails
        await asyncio.sleep(0)
        counted["slow"] += 1
        return "late"

    calls = [asks_for(name, id=name) for name in ("good", "bad", "slow")]
    message = {"content": None, "tool_calls": calls}
    async with make_runtime() as rt:
        agent = Agent("work", ScriptedModel([message, "done"]), [bad, good, slow])
        with pytest.raises(RunFailedError, match="LookupError: no such page"):
            await rt.run(agent, "go", id="r1")
        broken = False
        result = await (await rt.resume("r1")).result()
    assert counted == {"good": 1, "slow": 1}
    assert [m["content"] for m in result["messages"][2:-1]] == ["fine", "mended", "late"]


async def test_a_tool_has_retries_a_timeout_an_executor_and_a_key_of_its_own(make_runtime: MakeRuntime) -> None:
    keys, threads = [], set()

    @tool(retry=RetryPolicy(attempts=3, first_delay=0.0))
    async def flaky() -> str:
        keys.append(current_run().idempotency_key)
        if len(keys) < 3:
            raise ConnectionError("busy")
        return "at last"

    @tool(timeout=0.05)
    async def slow() -> str:
        await asyncio.Event().wait()
        return ""

    def elsewhere() -> str:
        threads.add(threading.current_thread().name)
        return "there"

    with ThreadPoolExecutor(1, thread_name_prefix="own") as pool:
        calls = [asks_for(name, id=name) for name in ("flaky", "slow", "elsewhere")]
        answers = await told(make_runtime, [flaky, slow, Tool(elsewhere, executor=pool)], *calls)
    assert answers[0] == "at last"
    assert "took longer than its timeout of 0.05 s" in answers[1]
    assert answers[2] == "there"
    assert len(set(keys)) == 1
    assert threads == {"own_0"}


async def test_the_options_of_a_step_and_the_method_of_an_object_make_tools_too(make_runtime: MakeRuntime) -> None:
    class Shop:
        async def price(self, item: str) -> int:
            return len(item)

        def __call__(self, item: str) -> str:
            return f"bought {item}"

    tries = []

    @step(retry=RetryPolicy(attempts=2, first_delay=0.0))
    def look(item: str) -> str:
        tries.append(item)
        if len(tries) == 1:
            raise ConnectionError("busy")
        return "seen"

    calls = [asks_for(name, {"item": "hat"}, name) for name in ("price", "Shop", "look")]
    assert await told(make_runtime, [Shop().price, Shop(), look], *calls) == ["3", "bought hat", "seen"]


async def test_a_def_tool_may_give_something_to_be_awaited(make_runtime: MakeRuntime) -> None:
    async def find(city: str) -> dict[str, str]:
        return {"in": city}

    def weather(city: str) -> Any:
        return find(city)

    found = await told(make_runtime, [weather], asks_for("weather", {"city": "Kiel"}))
    assert found == ['{"in":"Kiel"}']


async def test_calls_inside_a_tool_are_journaled_in_it(make_runtime: MakeRuntime) -> None:
    pages = []

    async def fetch(page: int) -> str:
        pages.append(page)
        return f"page {page}"

    @tool(retry=RetryPolicy(attempts=2, first_delay=0.0))
    async def read() -> str:
        found = [await call(fetch, n) for n in (1, 2)]
        if len(pages) == 2:
            pages.append(0)
            raise ConnectionError("busy")
        return ", ".join(found)

    assert await told(make_runtime, [read], asks_for("read")) == ["page 1, page 2"]
    assert pages == [1, 2, 0]


async def test_an_agent_without_persistence_runs_the_same() -> None:
    def look() -> str:
        return "seen" * 50

    async with Runtime(None) as rt:
        result = await rt.run(Agent("work", ScriptedModel([wants("look"), "done"]), [look]), "go")
    assert [m["content"] for m in result["messages"]] == ["go", None, "seen" * 50, "done"]
