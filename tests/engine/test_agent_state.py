"""The transcript of an agent is written once, as it grows, and every state of it can be built again exactly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from exactly import exactly
from holdfast import Agent, CheckpointPolicy, Runtime
from holdfast.model import Commit
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ScriptedModel, wants
from watched import WatchedStore

WORDS = "agent plan step verify estimate compare contract clause liability revenue quarter forecast".split()  # noqa: SIM905


def prose(number: int, length: int) -> str:
    chosen = random.Random(number)
    return " ".join(chosen.choice(WORDS) for _ in range(length // 5))[:length]


def read(n: int) -> str:
    return prose(n, 1000)


def glance(n: int) -> str:
    return prose(n, 200)


class Reader:
    """Reads page after page; what it costs does not depend on how long the conversation is."""

    def __init__(self, turns: int, *, said: int = 1000, tool: str = "read") -> None:
        self.turns, self.said, self.tool, self.asked = turns, said, tool, 0

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        self.asked += 1
        if self.asked > self.turns:
            return "done"
        return {**wants(self.tool, id=f"call-{self.asked}", n=self.asked), "content": prose(-self.asked, self.said)}


async def states(rt: Runtime, run: str = "r1") -> list[Any]:
    return [exactly(checkpoint.state) async for checkpoint in rt.checkpoints(run)]


async def problems(rt: Runtime) -> list[Any]:
    return [problem async for problem in rt.doctor()]


def odd(n: int) -> Any:
    return {"page": n, "text": "\ud800" + prose(n, 300)} if n % 3 else prose(n, 20)


POLICIES = {
    "every turn": None,
    "every third": CheckpointPolicy(every_n_steps=3),
    "throttled": CheckpointPolicy(throttle=1000),
    "kept": CheckpointPolicy(keep_latest=3),
    "kept of every second": CheckpointPolicy(keep_latest=2, every_n_steps=2),
    "deleted": CheckpointPolicy(on_finish="delete"),
}


@pytest.mark.parametrize("policy", POLICIES)
async def test_whatever_the_policy_every_state_that_is_kept_is_the_one_that_was_live(
    make_runtime: MakeRuntime, policy: str
) -> None:
    model = ScriptedModel([*(wants("odd", id=f"c{n}", n=n) for n in range(12)), "done"])
    async with make_runtime() as rt:
        live = await rt.run(Agent("odd", model, [odd], policy=POLICIES[policy], max_iterations=99), "go", id="r1")
    async with make_runtime() as rt:
        stored = await rt.load("r1")
        assert stored is not None
        assert exactly(stored.state) == exactly(live)
        assert exactly(await rt.result("r1")) == exactly(live)
        kept = [checkpoint.state async for checkpoint in rt.checkpoints("r1")]
        assert await problems(rt) == []
    for state in kept:
        assert exactly(state["messages"]) == exactly(live["messages"][: len(state["messages"])])
    if policy == "every turn":
        assert [len(state["messages"]) for state in kept] == [1, *range(2, 28, 2)]


async def test_a_rewind_and_a_fork_go_on_from_what_was_recalled(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        agent = Agent("pages", Reader(6), [read])
        live = await rt.run(agent, "go", id="r1")
        before = await states(rt)
        places = [checkpoint.id async for checkpoint in rt.checkpoints("r1")]
        forked = await (await rt.fork(places[4], id="r2")).result()
        assert exactly(forked["messages"][:8]) == exactly(live["messages"][:8])
        again = await (await rt.rewind(places[3])).result()
        assert exactly(again["messages"][:6]) == exactly(live["messages"][:6])
        assert (await states(rt))[: len(before)] == before
    async with make_runtime() as rt:
        for run, result in (("r1", again), ("r2", forked)):
            stored = await rt.load(run)
            assert stored is not None
            assert exactly(stored.state) == exactly(result)
        assert await problems(rt) == []


async def test_a_new_segment_in_the_middle_holds_everything_recalled(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        live = await rt.run(Agent("pages", Reader(40), [read], max_iterations=99), "go", id="r1")
        handle = await rt.fork("r1", id="r2", state={**live, "messages": live["messages"][:1]})
        assert (await handle.result())["output"] == "done"
    async with make_runtime() as rt:
        kept = [checkpoint.state["messages"] async for checkpoint in rt.checkpoints("r1")]
        assert all(exactly(one) == exactly(live["messages"][: len(one)]) for one in kept)
        assert await problems(rt) == []


async def test_a_failed_turn_leaves_nothing_in_the_transcript(make_runtime: MakeRuntime) -> None:
    broken = True

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        if len(messages) == 3 and broken:
            raise ConnectionError("busy")
        return wants("read", n=1) if len(messages) == 1 else f"of {len(messages)}"

    async with make_runtime() as rt:
        handle = await rt.start(Agent("pages", model, [read]), "go", id="r1")
        with pytest.raises(Exception, match="busy"):
            await handle.result()
        broken = False
        result = await (await rt.resume("r1")).result()
    assert [message["role"] for message in result["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert result["output"] == "of 3"


# Bytes


# What the model says in a turn and what the tool gives: 2 KB with the rest of both messages, and more.
SPLITS = [(0, 2000), (500, 1500), (910, 920), (1300, 700), (1690, 140), (2000, 0), (1500, 1500), (4000, 4000)]


def telling(length: int) -> Any:
    def read(n: int) -> str:
        return prose(n, length)

    return read


@pytest.mark.parametrize(("said", "told"), SPLITS)
async def test_a_conversation_of_300_turns_is_not_written_twice(tmp_path: Path, said: int, told: int) -> None:
    async with Runtime(f"sqlite:{tmp_path}/runs.db", durability="process") as rt:
        agent = Agent("pages", Reader(300, said=said), [telling(told)], max_iterations=999)
        result = await rt.run(agent, "go", id="r1")
        assert await problems(rt) == []
    transcript = len(json.dumps(result["messages"], separators=(",", ":")))
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert transcript > 600_000
    assert on_disk < 1.3 * transcript


async def test_a_conversation_of_300_turns_in_files_is_not_written_twice(tmp_path: Path) -> None:
    async with Runtime(f"file:{tmp_path}/runs", durability="process") as rt:
        result = await rt.run(Agent("pages", Reader(300), [read], max_iterations=999), "go", id="r1")
    transcript = len(json.dumps(result["messages"], separators=(",", ":")))
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 1.3 * transcript


@pytest.mark.parametrize(("said", "tool"), [(1800, glance), (1000, read), (0, read)])
async def test_the_log_of_a_conversation_holds_its_transcript_once(tmp_path: Path, said: int, tool: Any) -> None:
    store = WatchedStore(SqliteStore(tmp_path / "runs.db", durability="process"))
    async with Runtime(store) as rt:
        agent = Agent("pages", Reader(300, said=said, tool=tool.__name__), [tool], max_iterations=999)
        result = await rt.run(agent, "go", id="r1")
    transcript = len(json.dumps(result["messages"], separators=(",", ":")))
    log = sum(written(commit)[1] for batch in store.batches for commit in batch)
    assert log < transcript + 300 * 320  # what a turn of any size says of itself, twice


def written(commit: Commit) -> tuple[int, int]:
    return len(commit.entries), sum(len(entry.body) + len(entry.cursor) for entry in commit.entries)


async def test_a_turn_writes_as_much_in_a_long_conversation_as_in_a_short_one(tmp_path: Path) -> None:
    turns: list[list[tuple[int, int]]] = []
    for length in (2, 20_000):
        said = [{"role": "user", "content": f"line {n}"} for n in range(length)]
        store = WatchedStore(SqliteStore(tmp_path / f"{length}.db", durability="process"))
        async with Runtime(store) as rt:
            await rt.run(Agent("pages", Reader(20), [read]), said, id="r1")
        turns.append([written(commit) for batch in store.batches for commit in batch][1:-1])
    short, long = turns
    assert [entries for entries, _ in short] == [entries for entries, _ in long]
    # A snapshot follows when a segment has grown to twice the state: in the short one only.
    assert max(size for _, size in long) <= 1.05 * sorted(size for _, size in short)[-2]
