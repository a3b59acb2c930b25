"""Journaled calls: durable before the next line, found again after a crash, each in its own place."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore, Once
from holdfast import Pipeline, call, current_run, flow, step
from holdfast.errors import IdenticalBranchError, KeyReusedError, RunFailedError, UsageError
from holdfast.testing import ManualClock


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Tool:
    """A function with an effect: it counts how often each argument was given."""

    def __init__(self) -> None:
        self.effects: Counter[Any] = Counter()

    async def use(self, what: Any) -> str:
        self.effects[what] += 1
        await asyncio.sleep(0)
        return f"{what}!"


# Found again


async def test_what_was_called_before_a_crash_is_found_and_the_rest_is_made(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def five(n: int) -> list[str]:
        out = []
        for i in range(n):
            out.append(await call(tool.use, i))
            if i == 2:
                await once.wait()
        return out

    await lives.cut(five, 5, at=once.reached)
    assert await lives.finish(five, 5) == ["0!", "1!", "2!", "3!", "4!"]
    assert tool.effects == dict.fromkeys(range(5), 1)


async def test_a_pipeline_step_finds_its_calls_too(lives: Lives) -> None:
    tool, once = Tool(), Once()

    async def first(state: list[str]) -> list[str]:
        return [*state, await call(tool.use, "a")]

    async def second(state: list[str]) -> list[str]:
        state.append(await call(tool.use, "b"))
        await once.wait()
        state.append(await call(tool.use, "c"))
        return state

    pipeline = Pipeline("two", [first, second])
    await lives.cut(pipeline, [], at=once.reached)
    assert await lives.finish(pipeline, []) == ["a!", "b!", "c!"]
    assert set(tool.effects.values()) == {1}


async def test_a_call_cut_off_is_made_again_with_the_same_idempotency_key(lives: Lives) -> None:
    keys, once = [], Once()

    async def pay(amount: int) -> int:
        keys.append(current_run().idempotency_key)
        await once.wait()
        return amount

    @flow
    async def paying() -> int:
        return await call(pay, 1) + await call(pay, 2)

    await lives.cut(paying, at=once.reached)
    assert await lives.finish(paying) == 3
    assert keys[0] == keys[1] != keys[2]


async def test_a_step_inside_a_flow_is_a_journaled_call(lives: Lives) -> None:
    made, once = [], Once()

    @step
    async def fetch(url: str, *, depth: int = 0) -> str:
        made.append((url, depth))
        return f"{url}@{depth}"

    @flow
    async def crawl() -> list[str]:
        out = [await fetch("a"), await fetch("a"), await fetch.options(key="deep")("b", depth=2)]
        await once.wait()
        return out

    await lives.cut(crawl, at=once.reached)
    assert await lives.finish(crawl) == ["a@0", "a@0", "b@2"]
    assert made == [("a", 0), ("a", 0), ("b", 2)]


async def test_calls_inside_calls_are_journaled_below_them(lives: Lives) -> None:
    tool, once = Tool(), Once()

    async def outer(name: str) -> list[str]:
        out = [await call(tool.use, f"{name}1")]
        await once.wait()
        return [*out, await call(tool.use, f"{name}2")]

    @flow
    async def nested() -> list[str]:
        return [await call(tool.use, "x"), *await call(outer, "y"), *await call(outer, "z")]

    await lives.cut(nested, at=once.reached)
    assert await lives.finish(nested) == ["x!", "y1!", "y2!", "z1!", "z2!"]
    assert set(tool.effects.values()) == {1}


async def test_any_callable_can_be_called(lives: Lives) -> None:
    class Agent:
        async def __call__(self, n: int) -> int:
            return n + 1

        def think(self, n: int) -> int:
            return n * 2

    async def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    agent = Agent()

    def strange() -> str:
        return "strange"

    strange.__name__ = "\ud800" * 300

    @flow
    async def all_kinds() -> list[Any]:
        return [
            await call(agent, 1),
            await call(agent.think, 4),
            await call(partial(power, 2), 5),
            await call(max, 3, 7),
            await call(lambda: 9),
            await call(lambda: power(3, 2)),
            await call(str, 5),
            await call(strange),
        ]

    assert await lives.finish(all_kinds) == [2, 8, 32, 7, 9, 9, "5", "strange"]


# Branches


@pytest.mark.parametrize("seed", range(3))
async def test_branches_with_awaits_of_their_own_find_their_results(lives: Lives, seed: int) -> None:
    dice, made, once = random.Random(seed), Counter[tuple[int, int]](), Once()
    returned: set[tuple[int, int]] = set()
    halt_at = dice.randrange(10, 50)

    async def work(branch: int, turn: int) -> str:
        made[branch, turn] += 1
        if made.total() == halt_at:
            await once.wait()
        await asyncio.sleep(dice.random() / 500)
        return f"{branch}.{turn}"

    async def branch(n: int) -> list[str]:
        out = []
        for turn in range(3):
            await asyncio.sleep(dice.random() / 500)
            out.append(await call(work, n, turn))
            returned.add((n, turn))
        return out

    @flow
    async def fan() -> list[list[str]]:
        return await asyncio.gather(*(branch(n) for n in range(20)))

    await lives.cut(fan, at=once.reached)
    durable = returned.copy()
    assert await lives.finish(fan) == [[f"{n}.{turn}" for turn in range(3)] for n in range(20)]
    assert {made[place] for place in durable} <= {1}
    assert max(made.values()) <= 2


async def test_calls_made_by_the_body_and_gathered_keep_their_order(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def gathered() -> list[str]:
        out = await asyncio.gather(*(call(tool.use, n) for n in (3, 1, 3, 2)))
        await once.wait()
        return out

    await lives.cut(gathered, at=once.reached)
    assert await lives.finish(gathered) == ["3!", "1!", "3!", "2!"]
    assert tool.effects == {3: 2, 1: 1, 2: 1}


async def test_the_place_of_a_call_is_taken_when_it_is_called_not_awaited(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def late() -> list[str]:
        first, second = call(tool.use, "first"), call(tool.use, "second")
        if once.reached.is_set():
            out = [await first, await second]
        else:
            out = [await second, await first][::-1]
        await once.wait()
        return out

    await lives.cut(late, at=once.reached)
    assert await lives.finish(late) == ["first!", "second!"]
    assert tool.effects == {"first": 1, "second": 1}


async def test_branches_in_a_task_group_are_found_again(lives: Lives) -> None:
    tool, once, finished, others = Tool(), Once(), list[str](), asyncio.Event()

    async def branch(name: str) -> str:
        await asyncio.sleep(0)
        first = await call(tool.use, name)
        if name == "b":
            await others.wait()  # what is under way at the cut may be done again
            await once.wait()
        both = first + await call(tool.use, name * 2)
        finished.append(name)
        if {"a", "c"} <= set(finished):
            others.set()
        return both

    @flow
    async def grouped() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(name)) for name in "abc"]
        return [task.result() for task in tasks]

    await lives.cut(grouped, at=once.reached)
    assert await lives.finish(grouped) == ["a!aa!", "b!bb!", "c!cc!"]
    assert set(tool.effects.values()) == {1}


async def test_branches_of_branches_have_scopes_of_their_own(lives: Lives) -> None:
    tool, once = Tool(), Once()

    async def leaf(name: str) -> str:
        return await call(tool.use, name) + await call(tool.use, name)

    async def branch(name: str) -> list[str]:
        return await asyncio.gather(leaf(name + "1"), leaf(name + "2"))

    async def named(name: str) -> list[str]:
        return [await call(tool.use, name), *await branch(name)]

    @flow
    async def tree() -> list[Any]:
        out = await asyncio.gather(branch("a"), branch("b"), named("c"), named("d"))
        await once.wait()
        return out

    await lives.cut(tree, at=once.reached)
    result = await lives.finish(tree)
    assert result[0] == ["a1!a1!", "a2!a2!"]
    assert result[3] == ["d!", "d1!d1!", "d2!d2!"]
    assert sum(tool.effects.values()) == 4 * 4 + 2


async def test_two_identical_branches_at_once_are_an_error(lives: Lives) -> None:
    tool = Tool()

    async def branch(n: int) -> str:
        await asyncio.sleep(0)
        return await call(tool.use, "same")

    @flow
    async def twins() -> list[str]:
        return await asyncio.gather(branch(1), branch(2))

    with pytest.raises(RunFailedError, match="key") as failed:
        await lives.finish(twins)
    assert isinstance(failed.value.__cause__, IdenticalBranchError)


async def test_identical_branches_at_once_with_keys_are_told_apart(lives: Lives) -> None:
    made, once = Counter[int](), Once()

    async def same() -> int:
        n = made.total()
        made[n] += 1
        return n

    async def branch(key: str) -> int:
        return await call.options(key=key)(same)

    @flow
    async def keyed() -> list[int]:
        out = await asyncio.gather(branch("a"), branch("b"))
        await once.wait()
        return [*out, *(await asyncio.gather(branch("c"), branch("d")))]

    await lives.cut(keyed, at=once.reached)
    assert await lives.finish(keyed) == [0, 1, 2, 3]


async def test_identical_branches_one_after_the_other_are_fine(lives: Lives) -> None:
    count, once = Counter[str](), Once()

    async def tick() -> int:
        count["tick"] += 1
        return count["tick"]

    async def branch() -> int:
        await asyncio.sleep(0)
        return await call(tick)

    @flow
    async def in_turn() -> list[int]:
        out = [await asyncio.create_task(branch()) for _ in range(5)]
        await once.wait()
        return out

    await lives.cut(in_turn, at=once.reached)
    assert await lives.finish(in_turn) == [1, 2, 3, 4, 5]


async def test_identical_branches_one_after_the_other_are_fine_in_a_busy_process(lives: Lives) -> None:
    async def tick() -> int:
        return 1

    async def branch() -> int:
        return await call(tick)

    @flow
    async def in_turn() -> int:
        return sum([await asyncio.create_task(branch()) for _ in range(5)])

    others = [asyncio.create_task(asyncio.Event().wait()) for _ in range(400)]
    assert await lives.finish(in_turn) == 5
    for other in others:
        other.cancel()


async def test_a_branch_whose_first_arguments_cannot_be_encoded_needs_a_key(lives: Lives) -> None:
    async def use(client: object) -> str:
        return "used"

    async def branch(key: str | None) -> str:
        return await call.options(key=key)(use, object())

    @flow
    async def unkeyed() -> str:
        return await asyncio.create_task(branch(None))

    @flow
    async def keyed() -> str:
        return await call(use, object()) + await asyncio.create_task(branch("k"))  # the body itself needs none

    with pytest.raises(RunFailedError, match=r"cannot be encoded.*key"):
        await lives.finish(unkeyed)
    async with lives.runtime() as rt:
        assert await rt.run(keyed, id="r2") == "usedused"


async def test_a_branch_and_a_call_of_the_same_key_do_not_take_each_others_results(lives: Lives) -> None:
    once = Once()

    async def inner(text: str) -> str:
        return text

    async def outer(text: str) -> str:
        return await call(inner, text)

    async def branch() -> list[str]:
        return [await call.options(key="a")(outer, "branch"), await call(inner, "second of the branch")]

    @flow
    async def both() -> list[str]:
        out = [await call.options(key="a")(outer, "body"), *await asyncio.create_task(branch())]
        await once.wait()
        return out

    await lives.cut(both, at=once.reached)
    assert await lives.finish(both) == ["body", "branch", "second of the branch"]
    assert await lives.events("call_changed") == []


# Keys


async def test_a_key_used_twice_in_one_scope_is_an_error_and_nothing_is_done(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def twice() -> None:
        await call.options(key="k")(tool.use, 1)
        await call.options(key="k")(tool.use, 2)

    with pytest.raises(RunFailedError, match="'k'") as failed:
        await lives.finish(twice)
    assert isinstance(failed.value.__cause__, KeyReusedError)
    assert tool.effects == {1: 1}


async def test_the_same_key_in_different_scopes_is_fine(lives: Lives) -> None:
    tool = Tool()

    async def outer(name: str) -> str:
        return await call.options(key="k")(tool.use, name)

    @flow
    async def scopes() -> list[str]:
        return [await call(outer, "a"), await call(outer, "b"), await call.options(key="k")(tool.use, "c")]

    assert await lives.finish(scopes) == ["a!", "b!", "c!"]


@pytest.mark.parametrize("key", ["", "x" * 201, 5, "\ud800"])
async def test_what_is_no_key_is_refused(lives: Lives, key: Any) -> None:
    @flow
    async def wrong() -> None:
        await call.options(key=key)(asyncio.sleep, 0)

    with pytest.raises(RunFailedError, match="key") as failed:
        await lives.finish(wrong)
    assert isinstance(failed.value.__cause__, UsageError)


async def test_keys_make_calls_found_in_another_order(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def reordered() -> dict[str, str]:
        order = ["b", "a"] if once.reached.is_set() else ["a", "b"]
        out = {name: await call.options(key=name)(tool.use, name) for name in order}
        await once.wait()
        return out

    await lives.cut(reordered, at=once.reached)
    assert await lives.finish(reordered) == {"b": "b!", "a": "a!"}
    assert tool.effects == {"a": 1, "b": 1}


# What a replay asks for


async def test_changed_arguments_give_the_stored_result_and_an_event(lives: Lives) -> None:
    tool, once = Tool(), Once()

    @flow
    async def changing() -> str:
        out = await call(tool.use, "now" if once.reached.is_set() else "before")
        await once.wait()
        return out

    await lives.cut(changing, at=once.reached)
    assert await lives.finish(changing) == "before!"
    assert tool.effects == {"before": 1}
    (event,) = await lives.events("call_changed")
    assert event.data["name"] == "use"
    assert event.data["before"] != event.data["now"]


async def test_calls_that_a_replay_never_asks_for_are_an_event(lives: Lives) -> None:
    tool, once = Tool(), Once()

    async def outer() -> str:
        return await call(tool.use, "below a call that is found")

    @flow
    async def shrinking() -> str:
        await call(outer)
        if not once.reached.is_set():
            await call(tool.use, "gone")
        await once.wait()
        return "done"

    await lives.cut(shrinking, at=once.reached)
    assert await lives.finish(shrinking) == "done"
    (event,) = await lives.events("calls_unasked")
    assert event.data["count"] == 1
    assert event.data["keys"] == ["0/use:1"]


async def test_a_run_that_is_not_cut_off_tells_of_no_changes(lives: Lives) -> None:
    tool = Tool()

    @flow
    async def plain() -> list[str]:
        return [await call(tool.use, 1), *await asyncio.gather(call(tool.use, 2), call(tool.use, 3))]

    await lives.finish(plain)
    assert await lives.events("call_changed") == []
    assert await lives.events("calls_unasked") == []


# Outside of a run


async def test_outside_of_a_run_a_call_is_a_plain_call() -> None:
    async def double(n: int) -> int:
        return n * 2

    assert await call(double, 4) == 8
    assert await call(lambda: 3) == 3
    assert await call.options(key="k", on_doubt="ask", timeout=3)(double, 5) == 10
