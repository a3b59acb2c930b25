"""Questions: answered once, by what fits, wherever the run is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
import pytest

from conftest import MakeRuntime
from engine.asks import asking, open_asks, until_asked
from exactly import exactly
from holdfast import Runtime, ask, call, flow, step
from holdfast.errors import (
    AnsweredError,
    AnswerError,
    HoldfastError,
    NoQuestionError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    StateError,
    UsageError,
    VerbRefusedError,
)
from holdfast.testing import ManualClock
from waiting import until_event, until_status


@dataclass
class Verdict:
    approved: bool
    reason: str = ""


class Rating(pydantic.BaseModel):
    stars: int

    @pydantic.field_validator("stars")
    @classmethod
    def _is_odd(cls, stars: int) -> int:
        if stars % 2 == 0:
            raise ValueError("an odd number of stars, please")
        return stars


# Answers that fit, and those that do not


@pytest.mark.parametrize("value", [None, True, 7, "yes", 2.5, [1, (2, 3)], {"a": {1, 2}}, b"\x00"])
async def test_without_a_schema_any_value_that_can_be_stored_is_an_answer(
    make_runtime: MakeRuntime, value: Any
) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(asking(), id="r1")
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", value)
        assert exactly(await handle.result()) == exactly(value)


@pytest.mark.parametrize(
    ("schema", "fits", "wrong", "value"),
    [
        (bool, True, "true", True),
        (int, 3, 3.5, 3),
        (Literal["yes", "no"], "no", "maybe", "no"),
        (list[str], ["a"], ["a", 1], ["a"]),
        (Verdict, {"approved": False, "reason": "no"}, {"approved": "no"}, Verdict(False, "no")),
        (Verdict | None, None, 7, None),
        ({"type": "object", "required": ["n"]}, {"n": 1}, {}, {"n": 1}),
    ],
)
async def test_an_answer_is_held_to_the_schema_and_comes_as_its_type(
    make_runtime: MakeRuntime, schema: Any, fits: Any, wrong: Any, value: Any
) -> None:
    async with make_runtime() as rt, make_runtime() as other:
        rt.register(Verdict)
        handle = await rt.start(asking(schema), id="r1")
        before = await until_status(rt, "r1", "waiting")
        with pytest.raises(AnswerError):
            await other.answer("r1", wrong)
        assert await rt.get("r1") == before
        (question,) = await open_asks(other, "r1")
        assert await other.answer("r1", fits) == question.id
        assert exactly(await handle.result()) == exactly(value)


async def test_a_model_is_built_of_the_answer(make_runtime: MakeRuntime) -> None:
    @flow
    async def body() -> int:
        rating = await ask("How many stars?", schema=Rating)
        assert type(rating) is Rating
        return int(rating.stars)

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_asked(rt, "r1")
        with pytest.raises(AnswerError, match="stars"):
            await rt.answer("r1", {"stars": "many"})
        await rt.answer("r1", {"stars": 3})
        assert await handle.result() == 3


async def test_an_answer_that_only_the_code_of_its_type_refuses_fails_the_ask_and_is_asked_for_again(
    make_runtime: MakeRuntime,
) -> None:
    @flow
    async def body() -> int:
        return int((await ask("How many stars?", schema=Rating)).stars)

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        (first,) = await until_asked(rt, "r1")
        await rt.answer("r1", {"stars": 2})
        with pytest.raises(RunFailedError, match="odd number of stars"):
            await handle.result()
        handle = await rt.resume("r1")
        (second,) = await until_asked(rt, "r1")
        assert second.id != first.id
        await rt.answer("r1", {"stars": 3})
        assert await handle.result() == 3


async def test_an_answer_that_cannot_be_stored_is_refused_and_the_question_stays_open(
    make_runtime: MakeRuntime,
) -> None:
    async with make_runtime() as rt:
        await rt.start(asking(), id="r1")
        (question,) = await until_asked(rt, "r1")
        with pytest.raises(StateError, match="answer"):
            await rt.answer("r1", object())
        assert await open_asks(rt, "r1") == [question]


# Applied once


async def test_of_two_answers_one_wins_and_the_other_is_told_so(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(asking(), id="r1")
        (question,) = await until_asked(rt, "r1")
        results = await asyncio.gather(
            rt.answer("r1", "here", ask=question.id),
            other.answer("r1", "elsewhere", ask=question.id),
            return_exceptions=True,
        )
        (lost,) = [result for result in results if isinstance(result, Exception)]
        assert isinstance(lost, AnsweredError)
        assert await handle.result() == ("here" if results[0] == question.id else "elsewhere")


async def test_a_second_answer_is_refused_before_and_after_the_first_was_taken_in(make_runtime: MakeRuntime) -> None:
    @flow
    async def body() -> list[Any]:
        return [await ask("First?"), await ask("Second?")]

    async with make_runtime() as other:
        async with make_runtime() as rt:
            await rt.start(body, id="r1")
            await until_status(rt, "r1", "waiting")
        first = await other.answer("r1", 1)
        for _ in range(2):
            with pytest.raises(AnsweredError):
                await other.answer("r1", 2)
        async with make_runtime(recover=True) as rt:
            rt.register(body)
            await until_event(rt, "r1", "waiting", 2)
            with pytest.raises(AnsweredError, match=first):
                await other.answer("r1", 2, ask=first)
            await other.answer("r1", "second")
            await until_status(rt, "r1", "completed")
            assert await rt.result("r1") == [1, "second"]
            with pytest.raises(AnsweredError, match=first):
                await other.answer("r1", 3, ask=first)


async def test_an_answer_to_nothing_says_what_is_open(make_runtime: MakeRuntime) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    @flow
    async def body() -> Any:
        await call(wait)
        return await ask("Go on?")

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        with pytest.raises(NoQuestionError, match="no question open"):
            await rt.answer("r1", True)
        gate.set()
        (question,) = await until_asked(rt, "r1")
        with pytest.raises(NoQuestionError, match=question.id):
            await rt.answer("r1", True, ask="nosuch")
        with pytest.raises(RunNotFoundError):
            await rt.answer("nobody", True)
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled"])
async def test_an_answer_to_an_ended_run_is_refused(make_runtime: MakeRuntime, ends: str) -> None:
    @flow
    async def body() -> None:
        answer = await ask("How?")
        if answer == "fail":
            raise LookupError("as you wish")

    async with make_runtime() as rt:
        await rt.start(body, id="r1")
        (question,) = await until_asked(rt, "r1")
        await (rt.cancel("r1") if ends == "cancelled" else rt.answer("r1", "fail" if ends == "failed" else "fine"))
        await until_status(rt, "r1", ends)
        assert await open_asks(rt, "r1") == await open_asks(rt) == []
        with pytest.raises(VerbRefusedError, match=ends):
            await rt.answer("r1", "late")
        with pytest.raises(VerbRefusedError if ends == "cancelled" else AnsweredError):
            await rt.answer("r1", "late", ask=question.id)


# Several questions


async def test_of_several_open_questions_the_answer_must_name_one(make_runtime: MakeRuntime) -> None:
    @flow
    async def body() -> dict[str, Any]:
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(ask(f"{name}?")) for name in ("left", "right")}
        return {name: task.result() for name, task in tasks.items()}

    async with make_runtime() as rt, make_runtime() as other:
        handle = await rt.start(body, id="r1")
        questions = {question.question: question.id for question in await until_asked(rt, "r1", 2)}
        await until_status(rt, "r1", "waiting")
        with pytest.raises(NoQuestionError, match="2 questions open"):
            await rt.answer("r1", True)
        await rt.answer("r1", 2, ask=questions["right?"])
        (left,) = await until_asked(rt, "r1")
        assert left.id == questions["left?"]
        assert [one.id for one in await open_asks(other)] == [left.id]
        await rt.answer("r1", 1)
        assert await handle.result() == {"left": 1, "right": 2}


async def test_a_question_stays_listed_while_another_one_of_the_run_is_answered(make_runtime: MakeRuntime) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    @flow
    async def body() -> list[Any]:
        return list(await asyncio.gather(ask("left?"), ask("right?"), call(wait)))

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        left, right = sorted(await until_asked(rt, "r1", 2), key=lambda one: one.question)
        await rt.answer("r1", 1, ask=left.id)
        await until_asked(rt, "r1", 1)
        assert [one.id for one in await open_asks(rt)] == [right.id]
        gate.set()
        await rt.answer("r1", 2)
        assert await handle.result() == [1, 2, None]


async def test_questions_are_shown_without_the_program_also_of_paused_and_interrupted_runs(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow(name="asking")
    async def body(run: str) -> Any:
        return await ask(f"{run}?", data={"verdict": Verdict(True)}, schema=bool, timeout=3600)

    async with make_runtime() as rt:
        rt.register(Verdict)
        for run in ("waiting", "paused"):
            await rt.start(body, run, id=run)
            await until_status(rt, run, "waiting")
        await rt.pause("paused")
    async with make_runtime() as stranger:
        found = {question.run: question async for question in stranger.asks()}
        assert set(found) == {"waiting", "paused"}
        question = found["paused"]
        assert (question.question, question.flow, question.schema) == ("paused?", "asking", {"type": "boolean"})
        assert question.asked_at.timestamp() == clock.now()
        assert question.expires_at is not None
        assert question.expires_at.timestamp() == clock.now() + 3600
        assert "approved" in str(question.data)
        await stranger.answer("paused", True)
        await stranger.answer("waiting", False)
    async with make_runtime() as rt:
        assert await rt.run(body, "waiting", id="waiting") is False
        assert (await until_status(rt, "paused", "paused")).status == "paused"
        assert await (await rt.resume("paused")).result() is True


# Where it may be used


async def test_an_ask_inside_a_step_called_from_a_flow_lets_the_run_go(make_runtime: MakeRuntime) -> None:
    made: list[str] = []

    @step
    async def approve(what: str) -> bool:
        made.append(what)
        return bool(await ask(f"{what}?", schema=bool))

    @flow
    async def body() -> list[bool]:
        return [await approve("one"), await approve("two")]

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        for times in (1, 2):
            await until_event(rt, "r1", "waiting", times)
            await rt.answer("r1", times == 1)
        assert await handle.result() == [True, False]
        assert made == ["one", "one", "two", "two"]


@pytest.mark.parametrize("on_doubt", ["fail", "ask"])
async def test_an_ask_inside_a_call_that_must_not_be_repeated_is_refused(
    make_runtime: MakeRuntime, on_doubt: Any
) -> None:
    async def pay() -> Any:
        return await ask("Really?")

    @flow
    async def body() -> str:
        try:
            await call.options(on_doubt=on_doubt)(pay)
        except UsageError as error:
            return str(error)
        return "asked"

    async with make_runtime() as rt:
        assert "cannot be used inside call" in await rt.run(body, id="r1")
        assert await open_asks(rt) == []


async def test_a_changed_question_keeps_its_answer_and_the_change_is_told(make_runtime: MakeRuntime) -> None:
    wording = "Go on?"

    @flow
    async def body() -> list[Any]:
        return [await ask(wording), await ask("And then?")]

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await until_event(rt, "r1", "waiting")
        await rt.answer("r1", 1)
        await until_event(rt, "r1", "waiting", 2)
        wording = "Shall we go on?"
        await rt.answer("r1", 2)
        assert await handle.result() == [1, 2]
        changed = [event async for event in rt.events("r1") if event.type == "call_changed"]
        assert [event.data["name"] for event in changed] == ["ask"]


@pytest.mark.parametrize("question", ["", None, 7, b"x"])
async def test_a_question_is_a_text(make_runtime: MakeRuntime, question: Any) -> None:
    @flow
    async def body() -> str:
        with pytest.raises(UsageError, match="it must be a text"):
            await ask(question)
        return "refused"

    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "refused"


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "10", True])
async def test_a_timeout_is_a_time(make_runtime: MakeRuntime, timeout: Any) -> None:
    @flow
    async def body() -> str:
        with pytest.raises(UsageError, match="timeout"):
            await ask("Well?", timeout=timeout)
        return "refused"

    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "refused"


async def test_a_schema_that_is_none_is_refused_before_anything_is_asked(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="schema"):
            await rt.run(asking(object()), id="r1")
        with pytest.raises(RunFailedError, match="data"):
            await rt.run(asking(data=object()), id="r2")
        assert await open_asks(rt) == []


async def test_ask_outside_of_a_run_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="inside a run only"):
        await ask("Anybody there?")


async def test_questions_work_without_a_store() -> None:
    async with Runtime(None) as rt:
        handle = await rt.start(asking(bool), id="r1")
        await until_status(rt, "r1", "waiting")
        with pytest.raises(AnswerError):
            await rt.answer("r1", "yes")
        await rt.answer("r1", True)
        assert await handle.result() is True


async def test_a_cancel_and_an_answer_at_once_are_both_told_the_truth(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt, make_runtime() as other:
        for number in range(4):
            handle = await rt.start(asking(), id=f"r{number}")
            await until_asked(rt, handle.id)
            if number % 2:
                await until_status(rt, handle.id, "waiting")
            cancelled, answered = await asyncio.gather(
                other.cancel(handle.id), rt.answer(handle.id, "yes"), return_exceptions=True
            )
            try:
                assert await handle.result() == "yes"
                assert not isinstance(answered, Exception)
            except RunCancelledError:
                assert not isinstance(cancelled, Exception)
                assert not isinstance(answered, Exception) or isinstance(answered, HoldfastError)


async def test_a_question_with_half_a_character_is_asked_all_the_same(make_runtime: MakeRuntime) -> None:
    @flow
    async def order(state: Any) -> Any:
        return await ask("Pay for \ud83d?")  # what a model's text that was cut off may hold

    async with make_runtime() as rt:
        handle = await rt.start(order, {}, id="r1")
        await until_status(rt, "r1", "waiting")
        assert [one.question async for one in rt.asks("r1")] == ["Pay for \\ud83d?"]
        await rt.answer("r1", "yes")
        assert await handle.result() == "yes"
