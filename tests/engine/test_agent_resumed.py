"""An agent cut off anywhere ends with the transcript of one that never was, and repeats no call that finished."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import Agent, CheckpointPolicy, Phase, Runtime, current_run
from holdfast.errors import HoldfastError, StoreUnavailableError
from holdfast.flows.tools import tool
from holdfast.model import Commit, Reply
from holdfast.store.base import Store
from holdfast.testing import ManualClock, ScriptedModel, wants
from watched import WatchedStore, kill

LONG = "all that is known of it. " * 20
SPARING = CheckpointPolicy(every_n_steps=3)


class Mortal(WatchedStore):
    """Dies with one of its commits: before it is written, or right after."""

    def __init__(self, inner: Store, commit: int | None = None, *, after: bool = False) -> None:
        super().__init__(inner)
        self._left, self._after = commit, after
        self.dead = asyncio.Event()

    def _dies(self, batch: Sequence[Commit]) -> bool:
        if self._left is None or not any(commit.entries for commit in batch):
            return False
        self._left -= 1
        return self._left == 0

    def _die(self) -> StoreUnavailableError:
        self.severed = True
        self.dead.set()
        return StoreUnavailableError("killed")

    async def commit(self, batch: Sequence[Commit]) -> list[Reply]:
        dies = self._dies(batch)
        if dies and not self._after:
            raise self._die()
        replies = await super().commit(batch)
        if dies:
            raise self._die()
        return replies

    def try_commit(self, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        return None  # each takes the same way


class World:
    """The tools of an agent of two phases, with what they really did, by their idempotency keys."""

    def __init__(self, outside: Runtime, *, dies_in: int | None = None) -> None:
        self.outside, self.dies_in = outside, dies_in
        self.done: list[tuple[str, str]] = []
        self.inside = asyncio.Event()
        self.spoken = False

    async def _do(self, what: str) -> None:
        self.done.append((what, current_run().idempotency_key))
        if self.dies_in is not None and len(self.done) == self.dies_in:
            self.inside.set()
            await asyncio.Event().wait()

    def agent(self, policy: CheckpointPolicy | None = None) -> Agent:
        async def search(word: str) -> str:
            await self._do(f"search {word}")
            return f"{word}: {LONG}"

        async def look() -> str:
            if not self.spoken:
                await self.outside.send("r1", "holdfast.user", "Mind the moon.")
                self.spoken = True
            await self._do("look")
            return "seen"

        @tool(approval=True)
        async def publish(text: str) -> str:
            await self._do("publish")
            return f"published {text}"

        def bad() -> str:
            raise LookupError("no such page")

        pair = [{"id": word, "name": "search", "arguments": {"word": word}} for word in ("tides", "moons")]
        lines = [
            {"content": "I look it up.", "tool_calls": pair},
            wants("look"),
            {"content": None, "tool_calls": [{"name": "bad"}, {"name": "nothing"}]},
            "That is known.",
            wants("publish", text=LONG),
            "Published.",
        ]
        phases = [Phase("research", tools=[search, look, bad]), Phase("publish", tools=[publish], prompt="Publish.")]
        return Agent("author", ScriptedModel(lines), phases=phases, policy=policy)


async def answering(rt: Runtime) -> None:
    """Allow whatever is asked, as soon as it is."""
    while True:
        with contextlib.suppress(HoldfastError):  # there is no run yet, or it was answered
            async for question in rt.asks("r1"):
                await rt.answer("r1", True, ask=question.id)
        await asyncio.sleep(0.01)


class Stage:
    def __init__(self, make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, policy: Any) -> None:
        self.make_runtime, self.make_store, self.clock, self.policy = make_runtime, make_store, clock, policy

    async def live(self, world: World, store: Mortal) -> dict[str, Any] | None:
        """The result of the run, or None when it died."""
        async with self.make_runtime(store) as rt:
            running = asyncio.ensure_future(rt.run(world.agent(self.policy), "Write on tides.", id="r1"))
            dying = [asyncio.ensure_future(event.wait()) for event in (store.dead, world.inside)]
            await asyncio.wait({running, *dying}, return_when=asyncio.FIRST_COMPLETED)
            died = any(one.done() for one in dying)
            for one in dying:
                one.cancel()
            if not died:
                return await running  # type: ignore[no-any-return]
            await kill(rt, store, self.clock)
            await asyncio.wait({running})
            running.exception()
            world.inside.clear()
            return None

    async def lives(self, world: World, store: Mortal) -> tuple[dict[str, Any], set[str], bool]:
        """The result after at most one death, the calls that were in the log by then, and whether it died."""
        helper = asyncio.ensure_future(answering(world.outside))
        try:
            result = await self.live(world, store)
            if result is not None:
                return result, set(), False
            kept = set()
            if await world.outside.get("r1") is not None:
                kept = {event.data["key"] async for event in world.outside.events("r1") if event.type == "call"}
            before = len(world.done)
            world.dies_in = None
            result = await self.live(world, Mortal(self.make_store()))
            assert result is not None
            again = Counter(world.done[before:])
            assert set(again.values()) <= {1}
            return result, kept, True
        finally:
            helper.cancel()


@pytest.fixture(params=["every turn", "every third turn"])
def stage(
    request: pytest.FixtureRequest, make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> Stage:
    return Stage(make_runtime, make_store, clock, SPARING if "third" in request.param else None)


def checked(result: dict[str, Any]) -> None:
    """Every tool call has its one answer, right behind it and in order."""
    messages = result["messages"]
    for place, message in enumerate(messages):
        calls = [call["id"] for call in message.get("tool_calls", ())]
        answers = messages[place + 1 : place + 1 + len(calls)]
        assert [answer.get("tool_call_id") for answer in answers] == calls
    assert result["finished"] == ["research", "publish"]
    spoken = [message["content"] for message in messages if message["role"] == "user"]
    assert spoken == ["Write on tides.", "Mind the moon.", "Publish."]


async def undisturbed(stage: Stage) -> tuple[dict[str, Any], int]:
    """The result, and how many commits there are to die at."""
    async with stage.make_runtime() as outside:
        store, world = Mortal(stage.make_store()), World(outside)
        result, _, died = await stage.lives(world, store)
        assert not died
        checked(result)
        assert sorted(what for what, _ in world.done) == ["look", "publish", "search moons", "search tides"]
        await outside.delete("r1")
    return result, sum(any(commit.entries for commit in batch) for batch in store.batches)


def intact(result: dict[str, Any], expected: dict[str, Any], world: World, kept: set[str]) -> None:
    assert result == expected
    doing = Counter(what for what, _ in world.done)
    assert set(doing) == {"look", "publish", "search moons", "search tides"}
    assert len(set(world.done)) == 4  # whatever was done twice was done with one key
    finished = {key.rpartition("/")[2] for key in kept}
    names = {"look=look": "look", "publish=publish": "publish"}
    names |= {f"search={word}": f"search {word}" for word in ("tides", "moons")}
    assert all(doing[what] == 1 for key, what in names.items() if key in finished)


async def sound(stage: Stage, expected: dict[str, Any]) -> None:
    async with stage.make_runtime() as rt:
        assert [problem async for problem in rt.doctor()] == []
        stored = await rt.load("r1")
        assert stored is not None
        assert stored.state == expected
        states = [checkpoint.state["messages"] async for checkpoint in rt.checkpoints("r1")]
        assert all(state == expected["messages"][: len(state)] for state in states)
        await rt.delete("r1")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_cut_off_at_every_commit_it_ends_with_the_same_transcript(stage: Stage, after: bool) -> None:
    expected, commits = await undisturbed(stage)
    assert commits >= 10
    deaths = 0
    for number in range(1, commits + 1):
        async with stage.make_runtime() as outside:
            world = World(outside)
            result, kept, died = await stage.lives(world, Mortal(stage.make_store(), number, after=after))
            deaths += died
            intact(result, expected, world, kept)
        await sound(stage, expected)
    assert deaths >= commits - 2  # how many there are depends a little on when a person answers


async def test_cut_off_inside_every_tool_it_ends_with_the_same_transcript(stage: Stage) -> None:
    expected, _ = await undisturbed(stage)
    for number in range(1, 5):
        async with stage.make_runtime() as outside:
            world = World(outside, dies_in=number)
            result, kept, died = await stage.lives(world, Mortal(stage.make_store()))
            assert died
            intact(result, expected, world, kept)
        await sound(stage, expected)


class Whimsical:
    """A model that never says the same twice."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        self.asked += 1
        if len(messages) >= 7:
            return f"whim {self.asked}"
        return wants("act", id=f"whim-{self.asked}", n=self.asked)


async def test_where_saves_are_skipped_a_model_that_changes_its_mind_repeats_no_finished_call(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    acts: list[int] = []
    inside, model = asyncio.Event(), Whimsical()

    async def act(n: int) -> str:
        acts.append(n)
        if n == 3 and not inside.is_set():
            inside.set()
            await asyncio.Event().wait()
        return f"acted {n}"

    agent = Agent("whims", model, [act], policy=CheckpointPolicy(throttle=1000))
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        running = asyncio.ensure_future(rt.run(agent, "go", id="r1"))
        await inside.wait()
        await kill(rt, store, clock)
        await asyncio.wait({running})
        running.exception()
    async with make_runtime() as rt:
        result = await rt.run(agent, "go", id="r1")
    assert acts == [1, 2, 3, 3]  # the third was cut off
    assert model.asked == 4
    assert [m["content"] for m in result["messages"] if m["role"] == "tool"] == ["acted 1", "acted 2", "acted 3"]


async def test_a_pause_and_a_shutdown_go_on_with_the_transcript(make_runtime: MakeRuntime) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def look() -> str:
        inside.set()
        await gate.wait()
        return "seen"

    agent = Agent("talk", ScriptedModel([wants("look"), wants("look", id="again"), "done"]), [look])
    async with make_runtime() as rt:
        handle = await rt.start(agent, "go", id="r1")
        await inside.wait()
        await handle.pause()
        gate.set()
        with pytest.raises(HoldfastError):
            await handle.result()
        run = await rt.get("r1")
        assert run is not None
        assert run.status == "paused"
    async with make_runtime() as rt:
        rt.register(agent)
        result = await (await rt.resume("r1")).result()
    assert [m["content"] for m in result["messages"]] == ["go", None, "seen", None, "seen", "done"]
