"""Tools that a person must allow, and calls of which nobody knows whether they were made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from engine.lives import Lives, Once
from holdfast import Agent, Ask, RetryPolicy, Runtime
from holdfast.errors import AnsweredError, AnswerError, CallInDoubtError, RunFailedError, RunWaitingError
from holdfast.flows.tools import tool
from holdfast.testing import ManualClock, ScriptedModel, wants
from waiting import until_status


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Bank:
    """A tool that needs approval, and what really went out."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, str]] = []

        @tool(approval=True)
        async def pay(amount: int, to: str) -> str:
            """Pay somebody."""
            self.paid.append((amount, to))
            return f"paid {amount} to {to}"

        self.pay = pay

    def agent(self, *lines: Any) -> Agent:
        return Agent("clerk", ScriptedModel([*lines, "done"]), [self.pay])


async def questions(rt: Runtime, count: int = 1) -> list[Ask]:
    async with asyncio.timeout(20):
        while len(found := [question async for question in rt.asks("r1")]) != count:
            await asyncio.sleep(0.005)
        return found


def told(result: dict[str, Any]) -> list[str]:
    return [message["content"] for message in result["messages"] if message["role"] == "tool"]


def both() -> dict[str, Any]:
    calls = [{"id": to, "name": "pay", "arguments": {"amount": n, "to": to}} for n, to in ((1, "ann"), (2, "bob"))]
    return {"content": None, "tool_calls": calls}


# Approval


async def test_the_question_shows_the_call_and_needs_no_process_while_it_is_open(make_runtime: MakeRuntime) -> None:
    bank = Bank()
    agent = bank.agent(wants("pay", id="p1", amount=20, to="ann"))
    async with make_runtime() as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(agent, "pay ann", id="r1", until="settled")
    assert bank.paid == []
    async with make_runtime() as other:  # knows nothing of the agent
        [question] = await questions(other)
        assert question.question == 'May clerk call pay({"amount":20,"to":"ann"})?'
        assert question.data == {"tool": "pay", "arguments": {"amount": 20, "to": "ann"}, "id": "p1"}
        for wrong in ("yes", {"approved": "yes"}, {"reason": "x"}, {"approved": True, "amount": 5}, None):
            with pytest.raises(AnswerError):
                await other.answer("r1", wrong)
        await other.answer("r1", True)
        with pytest.raises(AnsweredError):
            await other.answer("r1", False, ask=question.id)
    async with make_runtime() as rt:
        result = await rt.run(agent, "pay ann", id="r1")
    assert bank.paid == [(20, "ann")]
    assert told(result) == ["paid 20 to ann"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (False, "refused: a person did not allow this call"),
        ({"approved": False}, "refused: a person did not allow this call"),
        ({"approved": False, "reason": "too much"}, "refused: a person did not allow this call: too much"),
        ({"approved": True, "reason": "go on"}, "paid 20 to ann"),
    ],
)
async def test_the_model_is_told_what_the_person_said(make_runtime: MakeRuntime, answer: Any, text: str) -> None:
    bank = Bank()
    async with make_runtime() as rt:
        handle = await rt.start(bank.agent(wants("pay", amount=20, to="ann")), "go", id="r1")
        await questions(rt)
        await rt.answer("r1", answer)
        assert told(await handle.result()) == [text]
    assert len(bank.paid) == (1 if text.startswith("paid") else 0)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
async def test_two_approvals_at_once_are_answered_in_any_order(
    make_runtime: MakeRuntime, order: tuple[int, int]
) -> None:
    bank = Bank()
    async with make_runtime() as rt:
        handle = await rt.start(bank.agent(both()), "go", id="r1")
        asked = await questions(rt, 2)
        assert [question.data["id"] for question in asked] == ["ann", "bob"]
        await until_status(rt, "r1", "waiting")
        async with make_runtime() as other:
            await other.answer("r1", True, ask=asked[order[0]].id)
            [left] = await questions(rt, 1)
            assert left.id == asked[order[1]].id
            await other.answer("r1", {"approved": False, "reason": "no"}, ask=left.id)
        result = await handle.result()
    allowed = ("ann", "bob")[order[0]]
    assert [to for _, to in bank.paid] == [allowed]
    texts = told(result)
    assert texts[order[0]].startswith("paid")
    assert texts[order[1]].startswith("refused")


async def test_a_tool_without_approval_does_not_wait_for_one_with(make_runtime: MakeRuntime) -> None:
    bank, looked = Bank(), asyncio.Event()

    async def look() -> str:
        looked.set()
        return "seen"

    pay = wants("pay", amount=1, to="ann")["tool_calls"]
    message = {"content": None, "tool_calls": [*pay, {"id": "l", "name": "look"}]}
    async with make_runtime() as rt:
        handle = await rt.start(Agent("clerk", ScriptedModel([message, "done"]), [bank.pay, look]), "go", id="r1")
        await looked.wait()
        await until_status(rt, "r1", "waiting")
        await rt.answer("r1", True)
        assert told(await handle.result()) == ["paid 1 to ann", "seen"]


async def test_an_answer_counts_for_exactly_the_arguments_that_were_shown(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank()
    async with make_runtime() as rt:
        handle = await rt.start(bank.agent(wants("pay", id="p", amount=1, to="ann")), "go", id="r1")
        [question] = await questions(rt)
        await until_status(rt, "r1", "waiting")
        forked = await rt.load("r1")
        assert forked is not None
        # Whatever puts other arguments behind the same id, here a fork that was edited, asks anew.
        forked.state["messages"][1]["tool_calls"][0]["arguments"]["amount"] = 1000
        await rt.answer("r1", True, ask=question.id)
        await handle.result()
        await rt.fork(forked.id, id="r2", state=forked.state)
        await until_status(rt, "r2", "waiting")
        [other] = [one async for one in rt.asks("r2")]
        assert other.data["arguments"] == {"amount": 1000, "to": "ann"}
    assert bank.paid == [(1, "ann")]


async def test_long_arguments_are_shown_in_part_and_are_whole_in_the_data(make_runtime: MakeRuntime) -> None:
    bank = Bank()
    async with make_runtime() as rt:
        await rt.start(bank.agent(wants("pay", amount=1, to="x" * 2000)), "go", id="r1")
        [question] = await questions(rt)
        assert len(question.question) < 600
        assert question.question.endswith("... all of it is in the data)?")
        assert question.data["arguments"]["to"] == "x" * 2000
        await rt.cancel("r1")


async def test_a_question_that_is_open_when_the_process_dies_is_asked_once(
    lives: Lives, make_runtime: MakeRuntime
) -> None:
    bank, once = Bank(), Once()

    async def look() -> str:
        await once.wait()
        return "seen"

    pay = wants("pay", id="p", amount=1, to="ann")["tool_calls"]
    message = {"content": None, "tool_calls": [*pay, {"id": "l", "name": "look"}]}
    agent = Agent("clerk", ScriptedModel([message, "done"]), [bank.pay, look])
    await lives.cut(agent, "go", at=once.reached)
    async with make_runtime() as rt:
        [before] = await questions(rt)
        running = asyncio.ensure_future(rt.run(agent, "go", id="r1"))
        await until_status(rt, "r1", "waiting")
        [question] = await questions(rt)
        assert question.id == before.id
        await rt.answer("r1", True)
        assert told(await running) == ["paid 1 to ann", "seen"]
    assert bank.paid == [(1, "ann")]


# In doubt


class Mail:
    """A tool that must not be called twice; it is cut off the first time, behind its effect."""

    def __init__(self, on_doubt: Any) -> None:
        self.sent: list[str] = []
        self.once = Once()

        @tool(on_doubt=on_doubt)
        async def send(text: str) -> str:
            self.sent.append(text)
            await self.once.wait()
            return f"sent {text}"

        self.agent = Agent("clerk", ScriptedModel([wants("send", id="s", text="hello"), "done"]), [send])


async def test_a_call_in_doubt_fails_the_run_and_is_not_told_to_the_model(lives: Lives) -> None:
    mail = Mail("fail")
    await lives.cut(mail.agent, "go", at=mail.once.reached)
    for _ in range(2):
        async with lives.runtime() as rt:
            rt.register(mail.agent)
            with pytest.raises(RunFailedError) as failed:
                await (await rt.resume("r1")).result()
            assert isinstance(failed.value.__cause__, CallInDoubtError)
            stored = await rt.load("r1")
            assert stored is not None
            assert [message["role"] for message in stored.state["messages"]] == ["user", "assistant"]
    assert mail.sent == ["hello"]


LONG = "delivered " * 20


@pytest.mark.parametrize(
    ("answer", "text", "sent"),
    [
        ({"done": False}, "sent hello", 2),
        ({"done": True, "result": "it was sent"}, "it was sent", 1),
        ({"done": True, "result": LONG}, LONG, 1),
        ({"done": True, "result": {"ok": True, "why": LONG}}, f'{{"ok":true,"why":"{LONG}"}}', 1),
        ({"done": True, "result": 7}, "7", 1),
        ({"done": True}, "null", 1),
    ],
)
async def test_a_call_in_doubt_is_asked_about_and_the_model_is_told_what_came_of_it(
    lives: Lives, make_runtime: MakeRuntime, answer: Any, text: str, sent: int
) -> None:
    mail = Mail("ask")
    await lives.cut(mail.agent, "go", at=mail.once.reached)
    async with make_runtime() as rt:
        running = asyncio.ensure_future(rt.run(mail.agent, "go", id="r1"))
        [question] = await questions(rt)
        assert question.question.startswith("Was the call 'send' done?")
        await rt.answer("r1", answer)
        result = await running
    async with make_runtime() as rt:
        stored = await rt.load("r1")
        assert stored is not None
        assert stored.state == result
    assert told(result) == [text]
    assert len(mail.sent) == sent


async def test_a_tool_in_doubt_that_ran_out_of_time_is_not_told_to_the_model_as_a_mere_failure(
    make_runtime: MakeRuntime,
) -> None:
    sent = []

    @tool(on_doubt="ask", timeout=0.05)
    async def send() -> str:
        sent.append(1)
        await asyncio.Event().wait()
        return ""

    model = ScriptedModel([wants("send"), "done"])
    async with make_runtime() as rt:
        agent = Agent("clerk", model, [send], retry=RetryPolicy(attempts=2, first_delay=0.0))
        handle = await rt.start(agent, "go", id="r1")
        [question] = await questions(rt)
        assert question.question.startswith("Was the call 'send' done?")
        await rt.answer("r1", {"done": True, "result": "it went out"})
        assert told(await handle.result()) == ["it went out"]
    assert sent == [1]
