"""What eggai-clutch's RFC-006 promises, in Holdfast: teams of every strategy that are saved, cut off and resumed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Event, Handover, Runtime, Strategy, Team, Terminate
from holdfast.errors import (
    HoldfastError,
    RunCancelledError,
    RunFailedError,
    TooManyStepsError,
    UnknownTargetError,
    UsageError,
)
from holdfast.store.base import Store
from holdfast.testing import ManualClock
from warm import WarmPopen
from watched import WatchedStore, kill

MakeRuntime = Callable[..., Runtime]
MakeStore = Callable[[], Store]
EXAMPLE = Path(__file__).parents[2] / "examples" / "data_enrichment_team.py"


class Clutch:
    """Agents that add their name to the data, and the list of turns that were really taken: (agent, data in)."""

    def __init__(self) -> None:
        self.turns: list[tuple[str, int]] = []

    def agent(self, name: str, outcome: Callable[[list[str]], Any] | None = None) -> Any:
        """One that returns the data with its name, or what `outcome` makes of that."""

        async def turn(data: list[str]) -> Any:
            self.turns.append((name, len(data)))
            await asyncio.sleep(0)
            data = [*data, name]
            return data if outcome is None else outcome(data)

        turn.__name__ = name
        return turn

    def agents(self, names: str) -> list[Any]:
        return [self.agent(name) for name in names]

    @property
    def order(self) -> str:
        return "".join(name for name, _ in self.turns)


def sequential(clutch: Clutch, **options: Any) -> Team:
    return Team("clutch", clutch.agents("abcd"), **options)


def handing_over(clutch: Clutch, **options: Any) -> Team:
    """a → c with data, c → b without, b terminates."""
    a = clutch.agent("a", lambda data: Handover("c", [*data, "handed"]))
    b = clutch.agent("b", lambda data: Terminate({"words": data}))
    c = clutch.agent("c", lambda data: Handover("b"))
    return Team("clutch", [a, b, c], **options)


def round_robin(clutch: Clutch, **options: Any) -> Team:
    given: dict[str, Any] = {"max_turns": 6, "on_max_turns": "return", **options}
    return Team("clutch", clutch.agents("ab"), Strategy.ROUND_ROBIN, **given)


def selector(clutch: Clutch, **options: Any) -> Team:
    def choose(data: list[str]) -> str | None:
        return {0: "b", 1: "a", 2: "a", 3: "c"}.get(len(data))

    return Team("clutch", clutch.agents("abc"), Strategy.SELECTOR, selector=choose, **options)


def graph(clutch: Clutch, **options: Any) -> Team:
    edges = {"a": "b", "b": [("a", lambda data: len(data) < 3), ("c", lambda data: len(data) < 9)]}
    return Team("clutch", clutch.agents("abc"), Strategy.GRAPH, edges=edges, **options)


TEAMS: list[Any] = [sequential, handing_over, round_robin, selector, graph]


# Strategies


async def test_sequential_passes_the_data_along_in_order(make_runtime: MakeRuntime) -> None:
    clutch = Clutch()
    async with make_runtime() as rt:
        assert await rt.run(sequential(clutch), [], id="pipeline-xyz") == ["a", "b", "c", "d"]
    assert clutch.turns == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]


async def test_terminate_ends_with_its_result(make_runtime: MakeRuntime) -> None:
    clutch = Clutch()
    members = [clutch.agent("a"), clutch.agent("b", lambda data: Terminate({"enough": len(data)})), clutch.agent("c")]
    async with make_runtime() as rt:
        assert await rt.run(Team("clutch", members), [], id="r1") == {"enough": 2}
    assert clutch.order == "ab"


async def test_a_handover_skips_who_is_in_between_and_its_data_replaces(make_runtime: MakeRuntime) -> None:
    clutch = Clutch()
    members = [clutch.agent("a", lambda data: Handover("c", ["replaced"])), clutch.agent("b"), clutch.agent("c")]
    async with make_runtime() as rt:
        assert await rt.run(Team("clutch", members), ["in"], id="r1") == ["replaced", "c"]
    assert clutch.order == "ac"


async def test_an_unknown_handover_target_is_a_clear_error_the_run_failed_there_and_can_be_resumed(
    make_runtime: MakeRuntime,
) -> None:
    clutch, targets = Clutch(), ["zoe", "c"]
    members = [clutch.agent("a"), clutch.agent("b", lambda data: Handover(targets.pop(0), data)), clutch.agent("c")]
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"handover of member 'b' of team 'clutch' chose 'zoe'") as info:
            await rt.run(Team("clutch", members), [], id="r1")
        assert isinstance(info.value.__cause__, UnknownTargetError)
        run = await rt.get("r1")
        assert run is not None
        assert (run.status, run.step, run.next) == ("failed", 1, "b")
        assert await (await rt.resume("r1")).result() == ["a", "b", "c"]
    assert clutch.order == "abbc"


@pytest.mark.parametrize("with_data", [True, False])
async def test_every_turn_counts_and_max_turns_3_makes_3_calls(make_runtime: MakeRuntime, with_data: bool) -> None:
    clutch = Clutch()
    again = clutch.agent("a", lambda data: Handover("a", data if with_data else None))
    async with make_runtime() as rt:
        with pytest.raises(RunFailedError, match=r"has taken 3 steps and would go on with member 'a'") as info:
            await rt.run(Team("clutch", [again], max_turns=3), [], id="r1")
        assert isinstance(info.value.__cause__, TooManyStepsError)
        assert clutch.order == "aaa"
        returning = Team("clutch", [again], max_turns=3, on_max_turns="return")
        assert await rt.run(returning, [], id="r2") == (["a"] * 3 if with_data else [])
    assert clutch.order == "aaaaaa"


async def test_round_robin_of_two_with_six_turns(make_runtime: MakeRuntime) -> None:
    clutch = Clutch()
    async with make_runtime() as rt:
        assert await rt.run(round_robin(clutch), [], id="r1") == list("ababab")
    assert clutch.order == "ababab"


async def test_a_graph_follows_edges_a_condition_picks_and_no_edge_ends(make_runtime: MakeRuntime) -> None:
    clutch = Clutch()
    async with make_runtime() as rt:
        assert await rt.run(graph(clutch), [], id="r1") == list("ababc")


async def test_a_handover_overrides_the_edges_of_a_graph(make_runtime: MakeRuntime) -> None:
    clutch = Clutch()
    members = [clutch.agent("a", lambda data: Handover("c", data)), clutch.agent("b"), clutch.agent("c")]
    async with make_runtime() as rt:
        team = Team("clutch", members, Strategy.GRAPH, edges={"a": "b", "b": "c"})
        assert await rt.run(team, [], id="r1") == ["a", "c"]


async def test_a_selector_that_gives_none_ends_and_an_unknown_name_is_a_clear_error(make_runtime: MakeRuntime) -> None:
    clutch, names = Clutch(), ["a", "zoe", None]
    async with make_runtime() as rt:
        assert await rt.run(selector(clutch), [], id="r1") == list("baac")
        team = Team("unsure", clutch.agents("a"), Strategy.SELECTOR, selector=lambda data: names.pop(0))
        with pytest.raises(RunFailedError, match=r"the selector of team 'unsure' chose 'zoe'.*there are: a"):
            await rt.run(team, [], id="r2")
        assert await (await rt.resume("r2")).result() == ["a"]
    assert clutch.order == "baaca"  # the turn before the wrong choice is not taken again


def test_an_empty_member_list_is_an_error_at_declaration() -> None:
    for strategy in (Strategy.SEQUENTIAL, Strategy.ROUND_ROBIN):
        with pytest.raises(UsageError, match="it has no members"):
            Team("clutch", [], strategy)


# Cut off after every single turn


class Life:
    """One life of a run, which ends as by a kill when so many turns are committed."""

    def __init__(self, make_runtime: MakeRuntime, store: WatchedStore, clock: ManualClock, run: str) -> None:
        self._make_runtime, self._store, self._clock, self._run = make_runtime, store, clock, run

    async def until(self, team: Team, turns: int) -> list[str]:
        """Cut it off the moment the commit of that turn is made. Gives the members whose turns are committed."""
        committed, reached = list[str](), asyncio.Event()

        def on_event(event: Event) -> None:
            if event.type == "checkpointed" and event.step in team.step_names and not reached.is_set():
                committed.append(event.step or "")
                if len(committed) == turns:
                    self._store.severed = True
                    reached.set()

        async with self._make_runtime(self._store, on_event=on_event) as rt:
            running = asyncio.ensure_future(rt.run(team, [], id=self._run))
            async with asyncio.timeout(20):
                await reached.wait()
            await kill(rt, self._store, self._clock)
            with contextlib.suppress(HoldfastError):
                await running
        return committed


@pytest.mark.parametrize("make_team", TEAMS)
async def test_every_strategy_cut_off_after_every_turn_and_resumed_is_as_if_never_cut_off(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, make_team: Callable[[Clutch], Team]
) -> None:
    undisturbed = Clutch()
    async with make_runtime() as rt:
        expected = await rt.run(make_team(undisturbed), [], id="undisturbed")
        history = [(p.step, p.after, p.next, p.state) async for p in rt.checkpoints("undisturbed")]
    for turn in range(1, len(undisturbed.turns)):  # the last turn is committed together with the end
        before, after = Clutch(), Clutch()
        life = Life(make_runtime, WatchedStore(make_store()), clock, f"cut-{turn}")
        committed = await life.until(make_team(before), turn)
        async with make_runtime() as rt:
            assert await rt.run(make_team(after), [], id=f"cut-{turn}") == expected
            assert [(p.step, p.after, p.next, p.state) async for p in rt.checkpoints(f"cut-{turn}")] == history
        assert before.turns[:turn] == undisturbed.turns[:turn]
        assert committed == list(undisturbed.order[:turn])
        assert after.turns == undisturbed.turns[turn:]  # none of a committed turn, and each of the others once


@pytest.mark.parametrize("make_team", TEAMS)
async def test_every_strategy_cut_off_after_each_of_its_turns_in_one_run(
    make_runtime: MakeRuntime, make_store: MakeStore, clock: ManualClock, make_team: Callable[[Clutch], Team]
) -> None:
    undisturbed, clutch, resumed = Clutch(), Clutch(), list[tuple[str, int]]()
    async with make_runtime() as rt:
        expected = await rt.run(make_team(undisturbed), [], id="undisturbed")
    for _ in undisturbed.turns[:-1]:  # each life commits one turn
        life, clutch = Life(make_runtime, WatchedStore(make_store()), clock, "r1"), Clutch()
        [_] = await life.until(make_team(clutch), 1)
        resumed += clutch.turns[:1]
    async with make_runtime() as rt:
        last = Clutch()
        assert await rt.run(make_team(last), [], id="r1") == expected
    assert [*resumed, *last.turns] == undisturbed.turns


@pytest.mark.parametrize("make_team", TEAMS)
async def test_a_clean_shutdown_in_every_turn_goes_on_with_that_turn(
    make_runtime: MakeRuntime, make_team: Callable[[Clutch], Team]
) -> None:
    undisturbed = Clutch()
    async with make_runtime() as rt:
        expected = await rt.run(make_team(undisturbed), [], id="undisturbed")
    for turn in range(len(undisturbed.turns)):
        clutch, inside = _Stopping(turn), asyncio.Event()
        clutch.inside = inside
        async with make_runtime(grace=0) as rt:
            await rt.start(make_team(clutch), [], id=f"stopped-{turn}")
            async with asyncio.timeout(20):
                await inside.wait()
        clutch.at = -1
        async with make_runtime() as rt:
            rt.register(make_team(clutch))
            [handle] = await rt.recover()
            assert await handle.result() == expected
        taken = Counter(clutch.turns)
        assert taken.pop(undisturbed.turns[turn]) == 2  # the one that was cut off
        assert set(taken.values()) <= {1}


class _Stopping(Clutch):
    """Stands still in its n-th turn."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.inside = at, asyncio.Event()

    def agent(self, name: str, outcome: Callable[[list[str]], Any] | None = None) -> Any:
        inner = super().agent(name, outcome)

        async def turn(data: list[str]) -> Any:
            result = await inner(data)
            if len(self.turns) - 1 == self.at:
                self.inside.set()
                await asyncio.Event().wait()
            return result

        turn.__name__ = name
        return turn


# Policies


async def lengths(rt: Runtime) -> list[int]:
    return [len(point.state) async for point in rt.checkpoints("r1")]


async def test_every_n_steps_2_saves_turns_2_4_and_so_on(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        team = round_robin(Clutch(), max_turns=7, policy=CheckpointPolicy(every_n_steps=2))
        await rt.run(team, [], id="r1")
        assert await lengths(rt) == [0, 2, 4, 6, 7]  # start and end are always there


async def test_on_complete_b_saves_after_b_only(make_runtime: MakeRuntime) -> None:
    async with make_runtime() as rt:
        await rt.run(round_robin(Clutch(), max_turns=5, policy=CheckpointPolicy(on_complete=["b"])), [], id="r1")
        saved = [point.after async for point in rt.checkpoints("r1")]
        assert await lengths(rt) == [0, 2, 4, 5]
    assert saved == [None, "b", "b", "a"]  # the last is the end


async def test_keep_latest_3_leaves_three_that_can_be_loaded(make_runtime: MakeRuntime) -> None:
    team = round_robin(Clutch(), policy=CheckpointPolicy(every_n_steps=1, keep_latest=3))
    async with make_runtime() as rt:
        await rt.run(team, [], id="r1")
        points = [point async for point in rt.checkpoints("r1")]
        assert [len(point.state) for point in points] == [4, 5, 6]
        assert [await rt.load(point.id) for point in points] == points


async def test_ttl_removes_expired_ones_on_prune_and_never_the_last_of_an_unfinished_run(
    make_runtime: MakeRuntime, clock: ManualClock
) -> None:
    policy = CheckpointPolicy(ttl=timedelta(hours=1))
    clutch = _Stopping(3)
    async with make_runtime(grace=0) as rt:
        await rt.run(Team("finished", Clutch().agents("ab"), policy=policy), [], id="r2")
        await rt.start(round_robin(clutch, policy=policy), [], id="r1")
        await clutch.inside.wait()
    async with make_runtime() as rt:
        assert await lengths(rt) == [0, 1, 2, 3]
        clock.advance(3601)
        await rt.prune()
        assert await lengths(rt) == [3]
        assert [point async for point in rt.checkpoints("r2")] == []
        clutch.at = -1
        assert await rt.run(round_robin(clutch, policy=policy), [], id="r1") == list("ababab")


# Checkpoints


async def test_a_manual_checkpoint_returns_an_id_that_resume_accepts(make_runtime: MakeRuntime) -> None:
    """`clutch.checkpoint()`, then `clutch.resume(checkpoint_id)`: rewind goes on from it, fork beside it."""
    clutch, inside, gate = Clutch(), asyncio.Event(), asyncio.Event()

    async def slow(data: list[str]) -> list[str]:
        inside.set()
        await gate.wait()
        return [*data, "slow"]

    members = [clutch.agent("a"), slow, clutch.agent("c")]
    team = Team("clutch", members, policy=CheckpointPolicy(on_complete=["nobody"]))
    async with make_runtime() as rt:
        handle = await rt.start(team, [], id="r1")
        await inside.wait()
        asked = asyncio.ensure_future(handle.checkpoint())
        while not rt._now().engine.live["r1"].runner.control._checkpoints:  # until the run knows
            await asyncio.sleep(0)
        gate.set()
        point = await rt.load(await asked)
        assert point is not None
        assert (point.state, point.next) == (["a", "slow"], "c")
        assert await handle.result() == ["a", "slow", "c"]
        assert await (await rt.fork(point.id, id="r2")).result() == ["a", "slow", "c"]
        assert await (await rt.rewind(point.id)).result() == ["a", "slow", "c"]
    assert clutch.order == "accc"


async def test_resume_latest_is_running_it_again(make_runtime: MakeRuntime) -> None:
    clutch = _Stopping(2)
    async with make_runtime(grace=0) as rt:
        await rt.start(sequential(clutch), [], id="pipeline-xyz")
        await clutch.inside.wait()
    clutch.at = -1
    async with make_runtime() as rt:
        assert await rt.run(sequential(clutch), [], id="pipeline-xyz") == list("abcd")
    assert clutch.order == "abccd"


async def test_on_step_sees_turns_and_checkpoints_in_order(make_runtime: MakeRuntime) -> None:
    told: list[tuple[Any, ...]] = []
    members = [*Clutch().agents("a"), Clutch().agent("b", lambda data: Terminate("over"))]
    async with make_runtime() as rt:
        await rt.run(Team("clutch", members, on_step=lambda *what: told.append(what)), [], id="r1")
        saved = [point.id async for point in rt.checkpoints("r1")][1:]
    assert told == [
        ("a", [], ["a"]),
        ("checkpoint", None, saved[0]),
        ("b", ["a"], "over"),  # also for the one that terminates
        ("checkpoint", None, saved[1]),
    ]


async def test_cancel_does_not_leave_the_handler_running(make_runtime: MakeRuntime) -> None:
    inside, gone = asyncio.Event(), asyncio.Event()

    async def handler(data: list[str]) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async with make_runtime() as rt:
        handle = await rt.start(Team("clutch", [handler]), [], id="r1")
        await inside.wait()
        await handle.cancel()
        with pytest.raises(RunCancelledError):
            await handle.result()
        async with asyncio.timeout(20):
            await gone.wait()


# The example


ALL_TURNS = ["clean"] + [turn for fact in ("country", "employees", "founded") for turn in (f"look up {fact}", "check")]
ALL_TURNS += ["score"]
FACTS = "{'country': 'Norway', 'employees': 120, 'founded': 1988}"
RESULT = f"result: Company(name='Nordic Tides', facts={FACTS}, score=0.12)"


def lines_of(store: str, *arguments: str, until: tuple[str, int] | None = None) -> list[str]:
    """What the example prints; killed when it begins a line with this for the n-th time."""
    command = [EXAMPLE, *arguments]
    lines: list[str] = []
    env = os.environ | {"HOLDFAST_STORE": store}
    with WarmPopen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if until is not None and sum(line.startswith(until[0]) for line in lines) == until[1]:
                process.kill()  # what it had printed by then is read to the end
    assert until is not None or process.returncode == 0
    return lines


def turns_in(lines: list[str]) -> list[str]:
    return [line.removeprefix("doing: ") for line in lines if line.startswith("doing: ")]


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
@pytest.mark.parametrize("until", [("doing: clean", 1), ("saved", 3), ("doing: check", 2), ("doing: score", 1)])
def test_the_data_enrichment_team_goes_on_with_the_turn_that_was_not_saved(
    tmp_path: Path, scheme: str, until: tuple[str, int]
) -> None:
    store = f"{scheme}:{tmp_path / 'runs'}"
    before = lines_of(store, "0.1", until=until)
    saved = sum(line.startswith("saved") for line in before)
    again = lines_of(store, "0")
    # It may have died between the commit of a turn and the line that says so.
    assert turns_in(again) in (ALL_TURNS[saved:], ALL_TURNS[saved + 1 :])
    assert again[-1] == RESULT
    assert lines_of(store, "0") == [RESULT]


def test_the_data_enrichment_team_goes_on_from_a_checkpoint_that_it_named(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'runs'}"
    saved = [line.removeprefix("saved: ") for line in lines_of(store, "0") if line.startswith("saved: ")]
    assert len(saved) == len(ALL_TURNS)
    assert turns_in(lines_of(store, "0", saved[-3])) == ALL_TURNS[-2:]
