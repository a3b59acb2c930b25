"""Programs made at random, killed at random moments: the result is as if nothing had happened."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from engine.lives import Lives, MakeRuntime, MakeStore
from holdfast import RetryPolicy, blocking, call, flow
from holdfast.testing import ManualClock

LIVES = 3
KINDS = ["leaf", "def", "nested", "flaky", "sequence", "gather", "group", "tasks in turn"]


@pytest.fixture
def lives(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> Lives:
    return Lives(make_runtime, make_store, clock)


class Program:
    """A tree of calls: (kind, name, [programs]). Every leaf has a name of its own and gives it back."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.tree = self._tree(self._dice.randint(2, 5), "n")
        self.made, self.returned = Counter[str](), set[str]()
        self.kill = asyncio.Event()
        self._left = 0
        self._failed: set[str] = set()

    def _tree(self, depth: int, name: str) -> tuple[str, str, list[Any]]:
        kind = self._dice.choice(KINDS) if depth else "leaf"
        width = {"leaf": 0, "def": 0, "nested": 1, "flaky": 1}.get(kind, self._dice.randint(1, 3))
        return kind, name, [self._tree(depth - 1, f"{name}{i}") for i in range(width)]

    def begin_life(self) -> None:
        """Choose how many calls this life makes before it is killed."""
        self.kill, self._left = asyncio.Event(), self._dice.randint(1, 12)

    def expected(self, tree: Any) -> Any:
        kind, name, inner = tree
        return name if kind in ("leaf", "def") else [self.expected(one) for one in inner]

    async def run(self, tree: Any) -> Any:
        """What the tree comes to, with turns of the loop that nobody journals in between."""
        kind, name, inner = tree
        for _ in range(self._dice.randrange(6)):
            await asyncio.sleep(0)
        match kind:
            case "leaf" | "def":
                result = await call(self._leaf if kind == "leaf" else self._def, name)
                self.returned.add(name)
                return result
            case "nested":
                return await call(self._nested, tree)
            case "flaky":
                return await call.options(retry=RetryPolicy(attempts=2, first_delay=0))(self._flaky, tree)
            case "sequence":
                return [await self.run(one) for one in inner]
            case "gather":
                return list(await asyncio.gather(*(self.run(one) for one in inner)))
            case "group":
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self.run(one)) for one in inner]
                return [task.result() for task in tasks]
            case _:
                return [await asyncio.create_task(self.run(one)) for one in inner]

    async def _leaf(self, name: str) -> str:
        self.made[name] += 1
        self._left -= 1
        if self._left == 0:
            self.kill.set()
        for _ in range(self._dice.randrange(6)):
            await asyncio.sleep(0)
        return name

    def _def(self, name: str) -> str:
        return blocking.call(self._count, name)

    def _count(self, name: str) -> str:
        self.made[name] += 1
        return name

    async def _nested(self, tree: Any) -> Any:
        return [await self.run(one) for one in tree[2]]

    async def _flaky(self, tree: Any) -> Any:
        result = await self._nested(tree)
        if tree[1] not in self._failed:
            self._failed.add(tree[1])
            raise ConnectionError("the first time")
        return result


@pytest.mark.parametrize("seed", range(25))
async def test_a_random_program_comes_to_the_same_and_repeats_nothing_that_had_returned(
    lives: Lives, seed: int
) -> None:
    program = Program(seed)

    @flow
    async def body() -> Any:
        return await program.run(program.tree)

    durable: dict[str, int] = {}
    for _ in range(LIVES):
        program.begin_life()
        if not await lives.cut_or_end(body, at=program.kill):
            break
        durable = {name: program.made[name] for name in program.returned}
    assert await lives.finish(body) == program.expected(program.tree)
    assert {name: program.made[name] for name in durable} == durable
    assert await lives.events("call_changed") == []
    assert await lives.events("calls_unasked") == []
