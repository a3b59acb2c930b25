"""Messages: kept in order, none lost and none twice, sent before, during or after the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Pipeline, RetryPolicy, Runtime, call, flow, receive, step
from holdfast.errors import (
    IdenticalBranchError,
    RunFailedError,
    RunInterruptedError,
    RunNotFoundError,
    StateError,
    UsageError,
    VerbRefusedError,
    WaitTimeoutError,
)
from holdfast.model import Mail
from holdfast.store.base import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock
from waiting import until_event, until_status
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]


@flow
async def collect(count: int) -> list[Any]:
    return [await receive("news") for _ in range(count)]


async def test_messages_sent_before_the_wait_come_in_the_order_in_which_they_were_sent(
    make_runtime: MakeRuntime,
) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    @flow
    async def late(count: int) -> list[Any]:
        await call(wait)
        return [await receive("news") for _ in range(count)]

    async with make_runtime() as rt:
        handle = await rt.start(late, 5, id="r1")
        for number in range(5):
            await rt.send("r1", "news", number)
        gate.set()
        assert await handle.result() == [0, 1, 2, 3, 4]


async def test_messages_sent_during_and_after_the_wait_are_received(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(collect, 4, id="r1")
        await rt.send("r1", "news", "while it may still be starting")
        await until_status(rt, "r1", "waiting")
        await rt.send("r1", "news", "after it was let go")
        await until_status(rt, "r1", "waiting")
        await rt.send("r1", "news", None)
        await rt.send("r1", "news", {"deep": [1, (2,), {3}]})
        assert await handle.result() == [
            "while it may still be starting",
            "after it was let go",
            None,
            {"deep": [1, (2,), {3}]},
        ]


async def test_messages_that_come_while_steps_are_being_saved_disturb_nothing(make_runtime: MakeRuntime) -> None:
    # Several busy runs make commits go through the store's writer: a message is taken in while one is under way.
    async def advance(number: int, state: dict[str, int]) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"number": number}

    async def take_all(state: dict[str, int]) -> dict[str, Any]:
        return {"got": [await receive("news") for _ in range(40)]}

    steps = [step(name=f"step{n}")(lambda state: None) for n in range(60)]
    async with make_runtime() as rt:
        others = [await rt.start(Pipeline("other", advance, total=60), {}) for _ in range(3)]
        handle = await rt.start(Pipeline("busy", [*steps, step(take_all)]), {}, id="r1")
        for number in range(40):
            await rt.send("r1", "news", number)
        assert (await handle.result())["got"] == list(range(40))
        for other in others:
            assert await other.result() == {"number": 59}


async def test_a_message_and_a_wish_for_a_checkpoint_that_come_together_are_both_taken_in(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def first(state: list[Any]) -> None:
        inside.set()
        await gate.wait()

    async def second(state: list[Any]) -> list[Any]:
        return [await receive("news")]

    store = make_store()
    async with make_runtime(store) as rt:
        handle = await rt.start(Pipeline("two", [first, second]), [], id="r1")
        await inside.wait()
        await store.post_mail("r1", Mail("checkpoint", key="checkpoint-1"))
        await store.post_mail("r1", Mail("send", b'{"topic":"news","data":7}'))
        gate.set()
        assert await handle.result() == [7]


async def test_each_topic_has_an_order_of_its_own(make_runtime: MakeRuntime) -> None:
    @flow
    async def two_topics() -> list[Any]:
        return [await receive("b"), await receive("a"), await receive("a"), await receive("b")]

    async with make_runtime() as rt:
        handle = await rt.start(two_topics, id="r1")
        for topic, data in (("a", 1), ("a", 2), ("b", 3), ("b", 4)):
            await rt.send("r1", topic, data)
        assert await handle.result() == [3, 1, 2, 4]


async def test_receivers_in_gathered_branches_get_each_message_once(make_runtime: MakeRuntime) -> None:
    @flow
    async def fan_in(count: int) -> list[Any]:
        return list(await asyncio.gather(*[receive("news", key=f"k{n}") for n in range(count)]))

    async with make_runtime() as rt:
        handle = await rt.start(fan_in, 6, id="r1")
        for number in range(3):
            await rt.send("r1", "news", number)
        await until_status(rt, "r1", "waiting")
        for number in range(3, 6):
            await rt.send("r1", "news", number)
            await until_status(rt, "r1", "waiting", "completed")
        assert sorted(await handle.result()) == [0, 1, 2, 3, 4, 5]


async def test_two_branches_that_begin_with_the_same_receive_are_told_to_take_a_key(make_runtime: MakeRuntime) -> None:
    @flow
    async def fan_in() -> str:
        with pytest.raises(IdenticalBranchError, match=r"receive\(\.\.\., key=\.\.\.\)"):
            await asyncio.gather(take(), take())
        return "told"

    async def take() -> Any:
        return await receive("news")

    async with make_runtime() as rt:
        assert await rt.run(fan_in, id="r1") == "told"


# None is lost


async def test_messages_outlive_a_crash_also_those_that_were_already_received(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def stop_here() -> None:
        inside.set()
        await gate.wait()

    @flow
    async def body() -> list[Any]:
        first = await receive("news")
        await call(stop_here)
        return [first, await receive("news"), await receive("news")]

    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await rt.start(body, id="r1")
        await rt.send("r1", "news", 1)
        await rt.send("r1", "news", 2)
        await inside.wait()
        await kill(rt, store, clock)
    gate.set()
    async with make_runtime() as rt:
        await rt.send("r1", "news", 3)
        assert await rt.run(body, id="r1") == [1, 2, 3]


async def test_messages_outlive_checkpoints_new_segments_and_retention(make_runtime: MakeRuntime) -> None:
    first_of_it, gate = asyncio.Event(), asyncio.Event()

    async def grow(number: int, state: dict[str, Any]) -> dict[str, Any]:
        if number == 0:
            first_of_it.set()
            await gate.wait()
        if number < 30:
            return {"text": f"{number}" * 3000}
        return {"got": [await receive("news") for _ in range(3)]}

    policy = CheckpointPolicy(keep_latest=2, on_finish="delete")
    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("grow", grow, total=31, policy=policy), {}, id="r1")
        await first_of_it.wait()
        for number in range(3):
            await rt.send("r1", "news", number)
        gate.set()
        assert (await handle.result())["got"] == [0, 1, 2]


async def test_messages_outlive_a_failure_and_the_resume_after_it(make_runtime: MakeRuntime) -> None:
    broken = True

    async def take_one(state: list[Any]) -> list[Any]:
        got = await receive("news")
        if broken:
            raise LookupError("not yet")
        return [*state, got]

    async def take_another(state: list[Any]) -> list[Any]:
        return [*state, await receive("news")]

    pipeline = Pipeline("fragile", [take_one, take_another])
    async with make_runtime() as rt:
        handle = await rt.start(pipeline, [], id="r1")
        await rt.send("r1", "news", 1)
        with pytest.raises(RunFailedError):
            await handle.result()
        await rt.send("r1", "news", 2)
        broken = False
        assert await (await rt.resume("r1")).result() == [1, 2]


async def test_a_rewind_receives_what_came_since_again(make_runtime: MakeRuntime) -> None:
    async def take(state: list[Any]) -> list[Any]:
        return [*state, await receive("news")]

    steps = [step(name=name)(take) for name in ("one", "two", "three")]
    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("thrice", steps), [], id="r1")
        for number in range(3):
            await rt.send("r1", "news", number)
        assert await handle.result() == [0, 1, 2]
        after_one = [c async for c in rt.checkpoints("r1")][1]
        assert after_one.state == [0]
        assert await (await rt.rewind(after_one.id)).result() == [0, 1, 2]
        assert await (await rt.rewind("r1@1")).result() == [0, 1, 2]


async def test_a_rewind_to_a_call_does_not_receive_again_what_was_received_before_it(
    make_runtime: MakeRuntime,
) -> None:
    def note(value: Any) -> Any:
        return value

    @flow
    async def body() -> list[Any]:
        first = await receive("news")
        await call(note, first)
        return [first, await receive("news")]

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        await rt.send("r1", "news", 1)
        await rt.send("r1", "news", 2)
        assert await handle.result() == [1, 2]
        (noted,) = [line async for line in rt.ledger("r1") if line.name == "note"]
        assert await (await rt.rewind(f"r1@{noted.seq}")).result() == [1, 2]


async def test_a_message_is_not_lost_to_a_receiver_that_gave_up_in_the_same_moment(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    receiver: list[asyncio.Task[Any]] = []
    given_up: list[bool] = []

    class GivesUp(WatchedStore):
        """Cancels the receiver while its message is being written."""

        def _written(self, batch: Any) -> None:
            if any(entry.kind == "received" for commit in batch for entry in commit.entries) and receiver:
                receiver.pop().cancel()
            super()._written(batch)

    @flow
    async def body() -> list[Any]:
        if not given_up:
            given_up.append(True)
            task = asyncio.ensure_future(receive("news", key="first"))
            receiver.append(task)
            await asyncio.wait({task})
            assert task.cancelled()
        return [await receive("news"), await receive("news")]

    async with make_runtime(GivesUp(make_store())) as rt:
        handle = await rt.start(body, id="r1")
        await rt.send("r1", "news", 1)
        await rt.send("r1", "news", 2)
        assert await handle.result() == [1, 2]
        assert [problem async for problem in rt.doctor()] == []
        assert await (await rt.rewind("r1@1")).result() == [1, 2]


async def test_a_message_that_nobody_received_is_there_in_the_next_step(make_runtime: MakeRuntime) -> None:
    async def ignore(state: list[Any]) -> None:
        with pytest.raises(WaitTimeoutError):
            await receive("other", timeout=0)

    async def take(state: list[Any]) -> list[Any]:
        return [await receive("news")]

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("two", [ignore, take]), [], id="r1")
        await rt.send("r1", "news", 1)
        assert await handle.result() == [1]


async def test_a_message_that_came_in_time_is_received_also_when_the_run_wakes_too_late(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow
    async def body() -> Any:
        return await receive("news", timeout=60, default="nothing came")

    async with make_runtime() as rt:
        await rt.start(body, id="r1")
        await until_status(rt, "r1", "waiting")
    async with make_runtime() as rt:
        await rt.send("r1", "news", "in time")
    clock.advance(3600)
    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "in time"


# Time out


async def test_a_message_that_came_too_late_is_there_for_the_next_receive_though_nobody_was_alive_at_that_moment(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow
    async def patient() -> list[Any]:
        return [await receive("news", timeout=60, default="nothing"), await receive("news")]

    async with make_runtime() as rt:
        await rt.start(patient, id="r1")
        await until_status(rt, "r1", "waiting")
    clock.advance(61)
    async with make_runtime() as stranger:
        await stranger.send("r1", "news", "late")
    async with make_runtime() as rt:
        assert await rt.run(patient, id="r1") == ["nothing", "late"]


async def test_a_message_from_a_clock_that_is_ahead_is_received_all_the_same(
    tmp_path: Path, clock: ManualClock
) -> None:
    lives, ahead = 0, ManualClock()
    ahead.advance(clock.now() + 120 - ahead.now())

    @flow
    async def patient() -> Any:
        nonlocal lives
        lives += 1
        return await receive("news", timeout=60, default="nothing")

    def runtime(its: ManualClock) -> Runtime:
        return Runtime(SqliteStore(tmp_path / "runs.db", clock=its), clock=its)

    async with runtime(clock) as rt:
        await rt.start(patient, id="r1")
        await until_status(rt, "r1", "waiting")
    async with runtime(ahead) as sender:
        await sender.send("r1", "news", 1)
    async with runtime(clock) as rt:
        assert await rt.run(patient, id="r1") == 1
    assert lives == 2


async def test_receive_gives_its_default_or_raises_when_nothing_comes_in_time(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    @flow
    async def body() -> list[Any]:
        got = [await receive("news", timeout=60, default=None)]
        try:
            await receive("news", timeout=60)
        except WaitTimeoutError as error:
            got.append(str(error))
        got.append(await receive("news"))
        return got

    async with make_runtime() as rt:
        handle = await rt.start(body, id="r1")
        for times in (1, 2):
            await until_event(rt, "r1", "waiting", times)
            clock.advance(61)
        await until_event(rt, "r1", "waiting", 3)
        await rt.send("r1", "news", "late")
        nothing, told, late = await handle.result()
        assert (nothing, late) == (None, "late")
        assert "'news' did not come within 60 s" in told


# Bad input


@pytest.mark.parametrize("topic", ["", "x" * 201, 7, None, b"news", "\ud800"])
async def test_a_topic_is_a_short_text(make_runtime: MakeRuntime, topic: Any) -> None:
    @flow
    async def body() -> str:
        try:
            await receive(topic)
        except UsageError:
            return "refused"
        return "taken"

    async with make_runtime() as rt:
        assert await rt.run(body, id="r1") == "refused"
        await rt.start(collect, 1, id="r2")
        with pytest.raises(UsageError, match="topic"):
            await rt.send("r2", topic, 1)


@pytest.mark.parametrize("ends", ["completed", "cancelled"])
async def test_a_message_to_an_ended_run_is_refused_and_nothing_changes(make_runtime: MakeRuntime, ends: str) -> None:
    async with make_runtime() as rt:
        await rt.start(collect, 0 if ends == "completed" else 1, id="r1")
        if ends == "cancelled":
            await rt.cancel("r1")
        await until_status(rt, "r1", ends)
        before = await rt.get("r1")
        with pytest.raises(VerbRefusedError, match=ends):
            await rt.send("r1", "news", 1)
        assert await rt.get("r1") == before


async def test_a_message_that_cannot_be_stored_or_has_no_run_is_refused(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.start(collect, 1, id="r1")
        with pytest.raises(StateError, match="data"):
            await rt.send("r1", "news", object())
        with pytest.raises(RunNotFoundError):
            await rt.send("nobody", "news", 1)


async def test_a_message_is_accepted_also_when_its_run_cannot_be_told_at_once(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    class Unheard(WatchedStore):
        """Takes mail, and fails whoever asks for it right afterwards."""

        deaf = False

        async def post_mail(self, run: str, mail: Mail) -> Any:
            posted = await super().post_mail(run, mail)
            self.deaf = True
            return posted

        def _written(self, batch: Any) -> None:
            if self.deaf and any(not commit.entries and not commit.change for commit in batch):
                self.deaf, self.severed = False, True
                try:
                    self._pass()
                finally:
                    self.severed = False
            super()._written(batch)

    async with make_runtime(Unheard(make_store())) as rt:
        handle = await rt.start(collect, 1, id="r1")
        await rt.send("r1", "news", "once")
        assert await handle.result() == ["once"]


async def test_receive_outside_of_a_run_says_what_to_do() -> None:
    with pytest.raises(UsageError, match="inside a run only"):
        await receive("news")


async def test_a_step_that_failed_after_a_message_has_it_again_at_its_next_attempt(make_runtime: MakeRuntime) -> None:
    attempts: list[Any] = []

    @step(retry=RetryPolicy(attempts=3, first_delay=0, jitter=0))
    async def fragile(state: list[Any]) -> list[Any]:
        attempts.append(await receive("news"))
        if len(attempts) < 3:
            raise LookupError("again")
        return [*attempts, await receive("news")]

    async with make_runtime() as rt:
        handle = await rt.start(Pipeline("retried", [fragile]), [], id="r1")
        await rt.send("r1", "news", 1)
        await rt.send("r1", "news", 2)
        assert await handle.result() == [1, 1, 1, 2]


async def test_messages_work_without_a_store() -> None:
    async with Runtime(None) as rt:
        handle = await rt.start(collect, 2, id="r1")
        await rt.send("r1", "news", 1)
        await until_status(rt, "r1", "waiting")
        await rt.send("r1", "news", 2)
        assert await handle.result() == [1, 2]


async def test_a_run_that_follows_nobody_any_more_says_so_when_its_runtime_closes(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        handle = await rt.start(collect, 1, id="r1")
        await until_status(rt, "r1", "waiting")
        waiting = asyncio.ensure_future(handle.result())
        await asyncio.sleep(0)
    with pytest.raises(RunInterruptedError):
        await waiting
