"""Calls whose effect must not be repeated unasked: the intent before, the result after, and doubt between."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import End, Pipeline, RetryPolicy, ask, blocking, call, current_run, faults, flow, step
from holdfast.errors import CallInDoubtError, RunFailedError, StepTimeoutError, UsageError
from holdfast.testing import ManualClock

AT_ONCE = RetryPolicy(attempts=3, first_delay=0, jitter=0)


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.install(None)


class Payment:
    """An effect that a test cuts off the first time."""

    def __init__(self) -> None:
        self.once, self.made = Once(), Counter[str]()
        self.keys: list[str] = []

    async def pay(self, who: str) -> str:
        self.made[who] += 1
        self.keys.append(current_run().idempotency_key)
        await self.once.wait()
        return f"paid {who}"


def paying(payment: Payment, on_doubt: Any) -> Any:
    @flow
    async def paying() -> str:
        return await call.options(on_doubt=on_doubt)(payment.pay, "ann")

    return paying


async def test_in_doubt_and_retry_makes_it_again_with_the_same_key(lives: Lives) -> None:
    payment = Payment()
    body = paying(payment, "retry")
    await lives.cut(body, at=payment.once.reached)
    assert await lives.finish(body) == "paid ann"
    assert payment.made["ann"] == 2
    assert len(set(payment.keys)) == 1


async def test_in_doubt_and_fail_never_makes_it_again(lives: Lives) -> None:
    payment = Payment()
    body = paying(payment, "fail")
    await lives.cut(body, at=payment.once.reached)
    async with lives.runtime(retry=AT_ONCE) as rt:
        with pytest.raises(RunFailedError, match="pay") as failed:
            await rt.run(body, id="r1")
        assert isinstance(failed.value.__cause__, CallInDoubtError)
        with pytest.raises(RunFailedError, match="pay"):
            await (await rt.resume("r1")).result()
    assert payment.made["ann"] == 1
    # It stays in doubt: no further attempt tells whether it was done.
    assert len(await lives.events("step_failed")) == 2


async def test_what_is_in_doubt_can_be_asked_about_once_the_program_says_so(lives: Lives) -> None:
    payment = Payment()
    await lives.cut(paying(payment, "fail"), at=payment.once.reached)
    with pytest.raises(RunFailedError):
        await lives.finish(paying(payment, "fail"))
    async with lives.runtime() as rt:
        rt.register(paying(payment, "ask"))
        handle = await rt.resume("r1")
        await _open_question(rt)
        await rt.answer("r1", {"done": True, "result": "it was"})
        assert await handle.result() == "it was"
    assert payment.made["ann"] == 1


async def test_the_body_may_handle_a_call_in_doubt_itself(lives: Lives) -> None:
    payment = Payment()

    @flow
    async def careful() -> str:
        try:
            return await call.options(on_doubt="fail")(payment.pay, "ann")
        except CallInDoubtError as error:
            return f"look up {error.call} {error.key == payment.keys[0]}"

    await lives.cut(careful, at=payment.once.reached)
    assert await lives.finish(careful) == "look up pay True"


@pytest.mark.parametrize(
    ("answer", "result", "made"),
    [
        ({"done": True, "result": "by hand"}, "by hand", 1),
        ({"done": True}, None, 1),
        ({"done": False}, "paid ann", 2),
    ],
)
async def test_in_doubt_and_ask_does_what_a_person_says(lives: Lives, answer: Any, result: Any, made: int) -> None:
    payment = Payment()
    body = paying(payment, "ask")
    await lives.cut(body, at=payment.once.reached)
    async with lives.runtime() as rt:
        handle = await _run(rt, body)
        question = await _open_question(rt)
        assert "pay" in question.question
        assert (question.data["call"], question.data["arguments"]) == ("pay", {"who": "ann"})
        await rt.answer("r1", answer)
        assert await handle == result
    assert payment.made["ann"] == made
    # And what was said is kept: going on from a later crash asks nobody.
    async with lives.runtime() as rt:
        assert await rt.run(body, id="r1") == result


@pytest.mark.parametrize("given", ["x" * 5000, object()], ids=["long", "unstorable"])
async def test_what_a_call_in_doubt_was_made_with_is_shortened_where_it_must_be(lives: Lives, given: Any) -> None:
    once = Once()

    async def pay(what: Any) -> None:
        await once.wait()

    @flow
    async def pays() -> None:
        await call.options(on_doubt="ask")(pay, given)

    await lives.cut(pays, at=once.reached)
    async with lives.runtime() as rt:
        handle = await _run(rt, pays)
        shown = (await _open_question(rt)).data["arguments"]
        assert (type(shown), len(shown) <= 1000, shown.startswith("{'what': ")) == (str, True, True)
        await rt.answer("r1", {"done": True})
        await handle


def _run(rt: Any, body: Any) -> Any:
    async def started() -> Any:
        return asyncio.ensure_future(rt.run(body, id="r1"))

    return started()


async def _open_question(rt: Any) -> Any:
    while True:
        questions = [question async for question in rt.asks("r1")]
        if questions:
            return questions[0]
        await asyncio.sleep(0.005)


async def test_an_answer_about_doubt_that_does_not_fit_is_refused(lives: Lives) -> None:
    payment = Payment()
    body = paying(payment, "ask")
    await lives.cut(body, at=payment.once.reached)
    async with lives.runtime() as rt:
        handle = await _run(rt, body)
        await _open_question(rt)
        for wrong in ("yes", {}, {"done": "yes"}, {"done": True, "extra": 1}):
            with pytest.raises(UsageError):
                await rt.answer("r1", wrong)
        await rt.answer("r1", {"done": True, "result": "ok"})
        assert await handle == "ok"


async def test_a_person_who_says_not_done_is_asked_again_when_it_is_cut_off_again(lives: Lives) -> None:
    payment = Payment()
    body = paying(payment, "ask")
    await lives.cut(body, at=payment.once.reached)
    payment.once.reached.clear()
    async with lives.runtime() as rt:
        rt.register(body)
        await rt.resume("r1")
        first = await _open_question(rt)
        await rt.answer("r1", {"done": False})
        await payment.once.reached.wait()
        assert lives.store is not None
        lives.store.severed = True
        await asyncio.gather(rt.close(), rt.close())
    lives._clock.advance(16)
    async with lives.runtime() as rt:
        handle = await _run(rt, body)
        second = await _open_question(rt)
        assert second.id != first.id
        await rt.answer("r1", {"done": True, "result": "the second time"})
        assert await handle == "the second time"
    assert payment.made["ann"] == 2


async def test_dying_before_the_intent_leaves_no_doubt(lives: Lives) -> None:
    payment, before = Payment(), asyncio.Event()
    payment.once.reached.set()
    body = paying(payment, "fail")

    def die(point: str) -> None:
        if point == "call.before_intent" and not before.is_set():
            before.set()
            assert lives.store is not None
            lives.store.severed = True

    faults.install(die)
    await lives.cut(body, at=before)
    faults.install(None)
    assert await lives.finish(body) == "paid ann"
    assert payment.made["ann"] == 1


@pytest.mark.parametrize("on_doubt", ["fail", "ask"])
async def test_dying_after_the_result_leaves_no_doubt(lives: Lives, on_doubt: Any) -> None:
    payment, after = Payment(), Once()
    payment.once.reached.set()

    @flow
    async def body() -> str:
        out = await call.options(on_doubt=on_doubt)(payment.pay, "ann")
        await after.wait()
        return out

    await lives.cut(body, at=after.reached)
    assert await lives.finish(body) == "paid ann"
    assert payment.made["ann"] == 1


async def test_dying_between_the_effect_and_its_commit_is_doubt(lives: Lives) -> None:
    payment, done = Payment(), asyncio.Event()
    payment.once.reached.set()
    body = paying(payment, "fail")

    def die(point: str) -> None:
        if point == "call.done" and not done.is_set():
            done.set()
            assert lives.store is not None
            lives.store.severed = True

    faults.install(die)
    await lives.cut(body, at=done)
    faults.install(None)
    with pytest.raises(RunFailedError, match="pay"):
        await lives.finish(body)
    assert payment.made["ann"] == 1


async def test_a_failure_is_no_doubt_and_is_made_again_by_a_new_attempt(lives: Lives) -> None:
    made = Counter[str]()

    async def refused() -> str:
        made["tried"] += 1
        if made["tried"] < 3:
            raise ValueError("card refused")
        return "accepted"

    @flow(retry=AT_ONCE)
    async def body() -> str:
        return await call.options(on_doubt="fail")(refused)

    assert await lives.finish(body) == "accepted"


async def test_a_timeout_leaves_doubt_and_no_attempt_is_made_unasked(lives: Lives) -> None:
    made, seen = Counter[str](), []

    async def slow() -> None:
        made["slow"] += 1
        await asyncio.Event().wait()

    @flow(retry=AT_ONCE)
    async def body() -> None:
        try:
            await call.options(on_doubt="fail", timeout=0.01, retry=AT_ONCE)(slow)
        except Exception as error:
            seen.append(type(error))
            raise

    with pytest.raises(RunFailedError):
        await lives.finish(body)
    assert seen == [StepTimeoutError, CallInDoubtError]
    assert made["slow"] == 1


async def test_a_call_given_up_before_it_began_is_not_in_doubt(lives: Lives) -> None:
    made = Counter[str]()

    async def pay() -> str:
        made["pay"] += 1
        return "paid"

    def give_up(point: str) -> None:
        if point == "call.before_intent" and not made["given up"]:
            made["given up"] += 1
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    @flow(retry=AT_ONCE)
    async def body() -> str:
        try:
            return await asyncio.create_task(call.options(on_doubt="fail")(pay))
        except asyncio.CancelledError:
            raise ValueError("try again") from None

    faults.install(give_up)
    assert await lives.finish(body) == "paid"
    assert made["pay"] == 1


async def test_nothing_can_be_waited_for_inside_a_call_that_must_not_run_twice(lives: Lives) -> None:
    async def asks() -> str:
        return str(await ask("May I?"))

    @flow
    async def body() -> str:
        return await call.options(on_doubt="fail")(asks)

    with pytest.raises(RunFailedError, match="on_doubt"):
        await lives.finish(body)


# The ledger


async def test_the_ledger_lists_every_call_with_what_became_of_it(lives: Lives) -> None:
    payment = Payment()

    async def bad() -> None:
        raise ValueError("no")

    async def slow() -> None:
        await asyncio.Event().wait()

    @flow
    async def body() -> str:
        await call(asyncio.sleep, 0)
        try:
            await call.options(key="k")(bad)
        except ValueError:
            pass
        try:
            async with asyncio.timeout(0.01):
                await call(slow)
        except TimeoutError:
            pass
        return await call.options(on_doubt="ask")(payment.pay, "ann")

    await lives.cut(body, at=payment.once.reached)
    async with lives.runtime() as rt:
        lines = [line async for line in rt.ledger("r1")]
    assert [(line.key, line.name, line.status, line.on_doubt) for line in lines] == [
        ("0/sleep:1", "sleep", "done", "retry"),
        ("0/bad=k", "bad", "failed", "retry"),
        ("0/slow:1", "slow", "abandoned", "retry"),
        ("0/pay:1", "pay", "in doubt", "ask"),
    ]
    assert lines[1].error == "ValueError: no"
    assert lines[0].started_at is not None
    assert lines[0].ended_at is not None
    assert lines[3].ended_at is None


# Steps of pipelines


@dataclass
class Order:
    items: list[str] = field(default_factory=list)
    paid: bool = False


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_pipeline_step_in_doubt_fails_and_is_not_run_again(lives: Lives, kind: str) -> None:
    made, inside = Counter[str](), asyncio.Event()
    loop = asyncio.get_running_loop()
    release = threading.Event()

    @step(on_doubt="fail", name="pay")
    async def pay(order: Order) -> None:
        made["pay"] += 1
        order.paid = True
        inside.set()
        await asyncio.Event().wait()

    @step(on_doubt="fail", name="pay")
    def pay_def(order: Order) -> None:
        made["pay"] += 1
        loop.call_soon_threadsafe(inside.set)
        release.wait()

    pipeline = Pipeline("order", [pay if kind == "async" else pay_def], state=Order)
    await lives.cut(pipeline, Order(["a"]), at=inside)
    release.set()
    with pytest.raises(RunFailedError, match="pay") as failed:
        await lives.finish(pipeline, Order(["a"]), retry=AT_ONCE)
    assert isinstance(failed.value.__cause__, CallInDoubtError)
    assert made["pay"] == 1


async def test_a_pipeline_step_whose_result_is_journaled_gives_the_state_it_left(lives: Lives) -> None:
    """A crash between the step's own result and the checkpoint that follows it."""
    made = Counter[str]()
    dead = asyncio.Event()

    @step(on_doubt="fail")
    async def pay(order: Order) -> None:
        made["pay"] += 1
        order.paid = True

    @step(on_doubt="fail")
    async def ship(order: Order) -> Order:
        made["ship"] += 1
        return Order([*order.items, "shipped"], order.paid)

    @step(on_doubt="ask")
    async def close(order: Order) -> End[str]:
        made["close"] += 1
        return End(f"closed {order.items} {order.paid}")

    pipeline = Pipeline("order", [pay, ship, close], state=Order)
    for name in ("pay", "ship", "close"):
        dead.clear()

        def refuse(commit: Any) -> bool:
            assert lives.store is not None
            kinds = [entry.kind for entry in commit.entries]
            if not dead.is_set() and made[name] and "call" not in kinds and "intent" not in kinds and kinds:  # noqa: B023
                dead.set()
                lives.store.severed = True
            return dead.is_set()

        async with lives.runtime() as rt:
            assert lives.store is not None
            lives.store.refuse = refuse
            running = asyncio.ensure_future(rt.run(pipeline, Order(["a"]), id="r1"))
            await dead.wait()
            await asyncio.gather(rt.close(), rt.close())
            await asyncio.wait({running})
            running.exception()
        lives._clock.advance(16)
    assert await lives.finish(pipeline, Order(["a"])) == "closed ['a', 'shipped'] True"
    assert made == {"pay": 1, "ship": 1, "close": 1}


async def test_a_person_can_say_what_state_a_pipeline_step_left(lives: Lives) -> None:
    inside = asyncio.Event()

    @step(on_doubt="ask")
    async def pay(order: Order) -> None:
        inside.set()
        await asyncio.Event().wait()

    async def after(order: Order) -> str:
        return f"{type(order).__name__} {order.items} {order.paid}"

    pipeline = Pipeline("order", [pay, after], state=Order)
    await lives.cut(pipeline, Order(["a"]), at=inside)
    async with lives.runtime() as rt:
        running = asyncio.ensure_future(rt.run(pipeline, Order(["a"]), id="r1"))
        await _open_question(rt)
        await rt.answer("r1", {"done": True, "result": {"items": ["b"], "paid": True}})
        assert await running == "Order ['b'] True"


async def test_blocking_calls_know_doubt_too(lives: Lives) -> None:
    made, inside, release = Counter[str](), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def pay() -> str:
        made["pay"] += 1
        loop.call_soon_threadsafe(inside.set)
        release.wait()
        return "paid"

    @flow
    def body() -> str:
        try:
            return blocking.call.options(on_doubt="fail")(pay)
        except CallInDoubtError:
            return "in doubt"

    await lives.cut(body, at=inside)
    release.set()
    assert await lives.finish(body) == "in doubt"
    assert made["pay"] == 1
