"""What the run checkpoint battery promises, in Holdfast: an agent loop that a restart cuts off and a boot continues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from conftest import MakeRuntime, MakeStore
from holdfast import Agent, CheckpointPolicy, Phase, Runtime
from holdfast.errors import HoldfastError, RunFailedError, StoreUnavailableError
from holdfast.store.base import Store
from holdfast.testing import ManualClock, ScriptedModel, wants
from watched import WatchedStore, kill

# Who asked for the run, and where: what is needed to take it up again.
META = {"caller": "u7", "channel": "c1", "guild": "g1", "model_tier": "large"}


class Executor:
    """An agent of two phases whose second tool call waits for the test when asked to."""

    def __init__(self, *, waits: bool = False, policy: CheckpointPolicy | None = None) -> None:
        self.calls: list[int] = []
        self.inside, self.gate = asyncio.Event(), asyncio.Event()
        if not waits:
            self.gate.set()

        async def look(n: int) -> str:
            self.calls.append(n)
            if n == 2:
                self.inside.set()
                await self.gate.wait()
            return f"saw {n}"

        lines = ["planned", *(wants("look", id=f"l{n}", n=n) for n in (1, 2, 3)), "done"]
        self.model = ScriptedModel(lines)
        phases = [Phase("plan", tools=[]), Phase("act", prompt="Act.")]
        self.agent = Agent("executor", self.model, [look], phases=phases, policy=policy)

    async def interrupted(self, rt: Runtime, store: WatchedStore, clock: ManualClock) -> None:
        """Start it and end its process inside the second tool call of the second phase."""
        handle = await rt.start(self.agent, "go", id="r1", metadata=META)
        await self.inside.wait()
        await kill(rt, store, clock)
        with pytest.raises(HoldfastError):
            await handle.result()
        self.gate.set()


EVERYTHING = ["go", "planned", "Act.", None, "saw 1", None, "saw 2", None, "saw 3", "done"]


def said(state: dict[str, Any]) -> list[Any]:
    return [message["content"] for message in state["messages"]]


async def candidates(rt: Runtime) -> list[str]:
    return [run.id for run in await rt.interrupted()]


async def test_a_run_that_is_saved_and_completes_is_no_recovery_candidate(make_runtime: MakeRuntime) -> None:
    one = Executor()
    async with make_runtime() as rt:
        result = await rt.run(one.agent, "go", id="r1", metadata=META)
        assert said(result) == EVERYTHING
    async with make_runtime() as rt:
        rt.register(one.agent)
        assert await candidates(rt) == []
        assert await rt.recover() == []


async def test_a_terminal_error_leaves_no_recovery_candidate(make_runtime: MakeRuntime) -> None:
    async def model(messages: Any, tools: Any) -> Any:
        raise ValueError("no such model")

    agent = Agent("executor", model)
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match="no such model"):
            await rt.run(agent, "go", id="r1")
    async with make_runtime() as rt:
        rt.register(agent)
        assert await candidates(rt) == []


async def test_a_save_inside_the_throttle_window_is_skipped(make_runtime: MakeRuntime, clock: ManualClock) -> None:
    async def look(n: int) -> str:
        clock.advance(4)
        return f"saw {n}"

    model = ScriptedModel([*(wants("look", id=f"l{n}", n=n) for n in range(6)), "done"])
    agent = Agent("executor", model, [look], policy=CheckpointPolicy(throttle=10))
    async with make_runtime() as rt:
        await rt.run(agent, "go", id="r1")
        saved = [checkpoint.state["iteration"] async for checkpoint in rt.checkpoints("r1")]
    assert saved == [0, 4, 7]  # 12 s after the start, and the end, which is always saved


async def test_a_failed_save_does_not_use_the_window_up(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    store = WatchedStore(make_store())
    broken = True

    def refused(commit: Any) -> bool:
        return broken and any(entry.kind == "checkpoint" for entry in commit.entries)

    async def model(messages: list[Any], tools: Any) -> Any:
        nonlocal broken
        clock.advance(11 if len(messages) == 1 else 1)
        if len(messages) > 1:
            broken = False
        return "more" if len(messages) < 4 else "done"

    store.refuse = refused
    policy = CheckpointPolicy(throttle=10, on_save_error="warn")
    agent = Agent("executor", model, phases=[Phase(f"p{n}") for n in range(4)], policy=policy)
    async with make_runtime(store) as rt:
        await rt.run(agent, "go", id="r1")
        saved = [len(checkpoint.state["messages"]) async for checkpoint in rt.checkpoints("r1")]
    # The first was due after 11 s and failed; the second is inside its window, and is saved all the same.
    assert saved == [1, 3, 5]


async def test_without_a_store_the_same_code_runs() -> None:
    one = Executor()
    async with Runtime(None) as rt:
        assert said(await rt.run(one.agent, "go")) == EVERYTHING


async def test_a_shutdown_leaves_a_candidate_with_messages_iteration_and_phase(make_runtime: MakeRuntime) -> None:
    one = Executor(waits=True)
    async with make_runtime() as rt:
        await rt.start(one.agent, "go", id="r1", metadata=META)
        await one.inside.wait()
        await asyncio.gather(rt.close(), rt.close())
    async with make_runtime() as rt:
        rt.register(one.agent)
        [run] = await rt.interrupted()
        assert (run.id, run.flow, run.metadata, run.next) == ("r1", "executor", META, "act")
        found = await rt.load("r1")
        assert found is not None
        assert said(found.state) == EVERYTHING[:6]
        assert (found.state["iteration"], found.state["phase"], found.state["finished"]) == (2, "act", ["plan"])


@pytest.mark.parametrize("policy", [None, CheckpointPolicy(throttle=1000)], ids=["every turn", "throttled"])
async def test_a_resumed_loop_continues_its_transcript_adds_no_input_and_repeats_no_finished_call(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, policy: CheckpointPolicy | None
) -> None:
    one, store = Executor(waits=True, policy=policy), WatchedStore(make_store())
    async with make_runtime(store) as rt:
        await one.interrupted(rt, store, clock)
    asked = one.model.calls
    async with make_runtime() as rt:
        rt.register(one.agent)
        [handle] = await rt.recover()
        result = await handle.result()
    assert said(result) == EVERYTHING
    assert one.calls == [1, 2, 2, 3]  # the second was cut off
    assert asked == 3
    assert one.model.calls == 5  # a completed phase is skipped, the interrupted one goes on at its iteration
    assert (result["iteration"], result["finished"]) == (4, ["plan", "act"])


async def test_two_phases_of_one_name_both_run_across_an_interruption(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock
) -> None:
    inside, gate = asyncio.Event(), asyncio.Event()
    script = ScriptedModel(["first", "second", "third"])

    async def model(messages: list[Any], tools: Any) -> Any:
        if len(messages) == 3:
            inside.set()
            await gate.wait()
        return await script(messages, tools)

    agent = Agent("executor", model, phases=[Phase("draft"), Phase("draft", prompt="Again."), Phase("end")])
    store = WatchedStore(make_store())
    async with make_runtime(store) as rt:
        handle = await rt.start(agent, "go", id="r1")
        await inside.wait()
        await kill(rt, store, clock)
        with pytest.raises(HoldfastError):
            await handle.result()
    gate.set()
    async with make_runtime() as rt:
        result = await rt.run(agent, "go", id="r1")
    assert said(result) == ["go", "first", "Again.", "second", "third"]
    assert result["finished"] == ["draft", "draft", "end"]


@pytest.mark.parametrize("way", ["panic", "exit", "cancel"])
async def test_a_run_is_finalised_on_every_way_out(make_runtime: MakeRuntime, way: str) -> None:
    inside = asyncio.Event()

    async def model(messages: Any, tools: Any) -> Any:
        if way == "cancel":
            inside.set()
            await asyncio.Event().wait()
        raise RecursionError("deep") if way == "panic" else SystemExit(3)

    agent = Agent("executor", model)
    async with make_runtime() as rt:
        handle = await rt.start(agent, "go", id="r1")
        if way == "cancel":
            await inside.wait()
            await handle.cancel("not needed")
        with pytest.raises(HoldfastError):
            await handle.result()
        run = await rt.get("r1")
        assert run is not None
        assert run.status == ("cancelled" if way == "cancel" else "failed")
        assert run.ended_at is not None
        assert await candidates(rt) == []


class _Full(WatchedStore):
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.refuse = lambda commit: commit.create is not None


async def test_a_save_that_fails_at_the_start_keeps_the_run_from_starting(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    one = Executor()
    async with make_runtime(_Full(make_store())) as rt:
        with pytest.raises(StoreUnavailableError):
            await rt.start(one.agent, "go", id="r1")
    assert one.model.calls == 0
    async with make_runtime() as rt:
        assert await rt.get("r1") is None


async def test_with_warn_a_save_that_fails_is_told_and_the_run_goes_on(
    make_runtime: MakeRuntime, make_store: MakeStore
) -> None:
    store = WatchedStore(make_store())
    store.refuse = lambda commit: any(entry.kind == "checkpoint" for entry in commit.entries) and commit.change is None
    told: list[str] = []
    agent = Agent(
        "executor",
        ScriptedModel(["one", "two", "three"]),
        phases=[Phase("a"), Phase("b"), Phase("c")],
        policy=CheckpointPolicy(on_save_error="warn"),
    )
    async with make_runtime(store, on_event=lambda event: told.append(event.type)) as rt:
        result = await rt.run(agent, "go", id="r1")
    assert said(result) == ["go", "one", "two", "three"]
    assert told.count("save_failed") == 2


async def test_a_crash_loop_is_capped(make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock) -> None:
    taken_up = 0
    one = Executor(waits=True)
    for _ in range(20):
        store = WatchedStore(make_store())
        async with make_runtime(store) as rt:
            rt.register(one.agent)
            one.inside.clear()
            if await rt.get("r1") is None:
                await rt.start(one.agent, "go", id="r1")
            elif not await rt.recover():
                break
            waiting = asyncio.ensure_future(one.inside.wait())
            async with asyncio.timeout(20):
                while not waiting.done():
                    run = await rt.get("r1")
                    if run is not None and run.status == "failed":
                        break
                    await asyncio.sleep(0.005)
            waiting.cancel()
            taken_up += 1
            await kill(rt, store, clock)
    async with make_runtime() as rt:
        run = await rt.get("r1")
        assert run is not None
        assert run.status == "failed"
    assert taken_up < 20
    assert one.calls.count(1) == 1
