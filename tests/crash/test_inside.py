"""The fixed-seed share of the torture of what steps do inside: calls, waits, children, streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Runtime, flow, spawn
from holdfast.errors import RunWaitingError

from . import calls, commits, functions, inside, waiting
from .nursery import Nursery
from .stores import url

SEED = 20240229


@pytest.mark.parametrize("name", calls.NAMES)
def test_each_effect_is_had_as_often_as_its_policy_promises(
    kind: str, name: str, tmp_path: Path, nursery: Nursery
) -> None:
    plan = calls.CallsPlan(name, SEED)
    figures = commits.torture(kind, plan, tmp_path, nursery, chosen=lambda number: number % 6 == 3)
    assert figures.kills >= 5


def test_a_run_that_does_all_there_is_comes_to_the_same_whatever_is_killed(
    kind: str, tmp_path: Path, nursery: Nursery
) -> None:
    plan = calls.EverythingPlan("everything", SEED)
    figures = commits.torture(kind, plan, tmp_path, nursery, chosen=lambda number: number % 6 == 3)
    assert figures.kills > figures.missed


def test_results_of_gathered_branches_land_in_their_own_calls(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    figures = inside.torture_branches(kind, range(5), tmp_path, nursery)
    assert figures.kills >= 5


def test_each_child_of_a_parent_that_is_killed_runs_once(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    figures = inside.torture_children(kind, 5, SEED, tmp_path, nursery)
    assert figures.kills == 5


def test_going_on_with_a_run_that_goes_round_loads_one_round(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    figures = inside.torture_rounds(kind, SEED, tmp_path, nursery, total=1000, each=100, kills=(50, 555, 950))
    assert len(figures.loaded) == 3


@pytest.mark.parametrize("beside", [False, True])
def test_a_question_is_asked_answered_and_made_use_of_by_three_processes(
    kind: str, beside: bool, tmp_path: Path, nursery: Nursery
) -> None:
    waiting.answer_from_outside(kind, tmp_path, nursery, beside=beside)


def test_of_two_answers_at_the_same_moment_one_wins(
    kind: str, tmp_path: Path, nursery: Nursery, other_nursery: Nursery
) -> None:
    wins = waiting.race_answers(kind, 20, tmp_path, (nursery, other_nursery))
    assert sum(wins) == 20


def test_a_timer_that_was_due_while_nobody_was_alive_fires_at_the_next_start(
    kind: str, tmp_path: Path, nursery: Nursery
) -> None:
    waiting.fire_late(kind, tmp_path, nursery)


@pytest.mark.parametrize("changing", [False, True])
def test_a_stream_is_read_whole_across_the_deaths_of_its_producer_and_its_reader(
    kind: str, changing: bool, tmp_path: Path, nursery: Nursery, other_nursery: Nursery
) -> None:
    stream = waiting.read_across_kills(kind, tmp_path, (nursery, other_nursery), chunks=1000, changing=changing)
    assert (stream.kills, stream.reconnects) == (2, 3)


async def test_a_program_that_asks_for_the_parent_alone_goes_on_with_the_child_too(kind: str, tmp_path: Path) -> None:
    asking = functions.question(beside=False)

    @flow
    async def parent(seed: int) -> list[object]:
        return [seed, *await spawn(asking, seed, id="child")]

    store = url(kind, tmp_path)
    async with Runtime(store) as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(parent, 1, id="parent", until="settled")
        await rt.answer("child", 42)
    async with Runtime(store) as rt:  # which has never heard of the child's flow
        assert await asyncio.wait_for(rt.run(parent, 1, id="parent"), 10) == [1, 42, "1:made"]
