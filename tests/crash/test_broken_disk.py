"""Disk full, read-only, I/O error: a run stops at its last good step and goes on once that is mended."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import CheckpointPolicy, Pipeline, Runtime, current_run, faults
from holdfast.errors import StoreUnavailableError
from holdfast.store.base import Store
from holdfast.store.sqlite import SqliteStore

from .broken_disk import FAULTS, BrokenDisk, store_on
from .nursery import Nursery, result_of
from .steps import change, expected, first_state, name_of
from .victim import fill

STEPS, BREAKS_IN, SEED = 8, 4, 7
INPUT = first_state(SEED)
RESULT = expected(SEED, STEPS)


@pytest.fixture
def disk() -> BrokenDisk:
    """Works until a test breaks it."""
    return BrokenDisk()


@pytest.fixture
def make(kind: str, disk: BrokenDisk, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Makes stores on that disk, all of the same runs."""
    with store_on(kind, disk, tmp_path) as maker:
        yield maker


class Steps:
    """A pipeline in which something happens to the disk, and the keys of all attempts."""

    def __init__(self, during: dict[int, Callable[[], None]], policy: CheckpointPolicy | None = None) -> None:
        self.began: Counter[int] = Counter()
        self.keys: dict[int, set[str]] = {}
        self.during = during
        self.flow = Pipeline("flow", self.advance, total=STEPS, policy=policy)

    async def advance(self, index: int, state: dict[str, Any]) -> None:
        """One step."""
        self.began[index] += 1
        self.keys.setdefault(index, set()).add(current_run().idempotency_key)
        change(state, index)
        self.during.pop(index, lambda: None)()


def breaking(disk: BrokenDisk, fault: str) -> Callable[[], None]:
    """What a step does to break the disk."""
    return lambda: setattr(disk, "fault", fault)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_run_stops_at_its_last_good_step_and_goes_on_in_the_same_runtime(
    make: Callable[[], Store], disk: BrokenDisk, fault: str
) -> None:
    steps = Steps({BREAKS_IN: breaking(disk, fault)})
    async with Runtime(make()) as rt:
        with pytest.raises(StoreUnavailableError) as raised:
            await rt.run(steps.flow, INPUT, id="run")
        assert raised.value.__cause__ is not None
        assert disk.failures > 0
        await check_last_good_step(rt)
        disk.fault = None
        assert repr(await rt.run(steps.flow, INPUT, id="run")) == RESULT
    check_attempts(steps)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_run_stops_at_its_last_good_step_and_goes_on_in_a_new_runtime(
    make: Callable[[], Store], disk: BrokenDisk, fault: str
) -> None:
    steps = Steps({BREAKS_IN: breaking(disk, fault)})
    async with Runtime(make()) as rt:
        with pytest.raises(StoreUnavailableError):
            await rt.run(steps.flow, INPUT, id="run")
    disk.fault = None
    async with Runtime(make()) as rt:
        await check_last_good_step(rt)
        assert repr(await rt.run(steps.flow, INPUT, id="run")) == RESULT
    check_attempts(steps)


async def check_last_good_step(rt: Runtime) -> None:
    """What was acknowledged before is there and can be read, broken disk or not; nothing more is."""
    run = await rt.get("run")
    assert run is not None
    assert run.step == BREAKS_IN
    last = await rt.load("run")
    assert last is not None
    assert last.state["done"] == [name_of(index) for index in range(BREAKS_IN)]


def check_attempts(steps: Steps) -> None:
    """Only the step whose save failed ran again, with the key it had."""
    assert steps.began == Counter({index: 2 if index == BREAKS_IN else 1 for index in range(STEPS)})
    assert all(len(keys) == 1 for keys in steps.keys.values())


@pytest.mark.parametrize("fault", FAULTS)
async def test_with_on_save_error_warn_a_run_goes_on_and_is_saved_once_that_works_again(
    make: Callable[[], Store], disk: BrokenDisk, fault: str
) -> None:
    events: list[str] = []
    policy = CheckpointPolicy(on_save_error="warn")
    steps = Steps({2: breaking(disk, fault), 5: lambda: setattr(disk, "fault", None)}, policy)
    async with Runtime(make(), on_event=lambda event: events.append(event.type)) as rt:
        assert repr(await rt.run(steps.flow, INPUT, id="run")) == RESULT
        kept = [checkpoint.step async for checkpoint in rt.checkpoints("run")]
    assert events.count("save_failed") == 3
    assert kept == [0, 1, 2, 6, 7, 8]
    assert set(steps.began.values()) == {1}


@pytest.mark.parametrize("on_save_error", ["raise", "warn"])
async def test_a_commit_that_failed_after_it_had_reached_the_disk_is_found_there(
    kind: str, make: Callable[[], Store], on_save_error: Any
) -> None:
    def fail_once(point: str) -> None:
        if point == "commit.after":
            faults.install(None)
            raise apsw.IOError("too late") if kind == "sqlite" else OSError(errno.EIO, "too late")

    steps = Steps({BREAKS_IN: lambda: faults.install(fail_once)}, CheckpointPolicy(on_save_error=on_save_error))
    try:
        async with Runtime(make()) as rt:
            if on_save_error == "raise":
                with pytest.raises(StoreUnavailableError):
                    await rt.run(steps.flow, INPUT, id="run")
            assert repr(await rt.run(steps.flow, INPUT, id="run")) == RESULT
            assert [checkpoint.step async for checkpoint in rt.checkpoints("run")] == list(range(STEPS + 1))
    finally:
        faults.install(None)
    assert set(steps.began.values()) == {1}


async def test_other_runs_go_on_when_the_disk_is_mended_under_them(make: Callable[[], Store], disk: BrokenDisk) -> None:
    steps = [Steps({index: breaking(disk, "full")}) for index in range(1, 4)]
    async with Runtime(make()) as rt:
        runs = [rt.run(each.flow, INPUT, id=f"run-{n}") for n, each in enumerate(steps)]
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        assert any(isinstance(outcome, StoreUnavailableError) for outcome in outcomes)
        for each in steps:
            each.during.clear()
        disk.fault = None
        runs = [rt.run(each.flow, INPUT, id=f"run-{n}") for n, each in enumerate(steps)]
        assert [repr(result) for result in await asyncio.gather(*runs)] == [RESULT] * 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_run_on_a_disk_that_is_really_full_goes_on_in_a_new_process_once_there_is_room(
    kind: str, small_disk: Path, nursery: Nursery
) -> None:
    arguments = {"kind": kind, "folder": str(small_disk), "seed": SEED, "steps": STEPS}
    full = nursery.run("filling", **arguments, fill_in=BREAKS_IN)
    assert [report["step"] for report in full if report["what"] == "started"] == list(range(BREAKS_IN + 1))
    assert full[-1]["what"] == "unavailable"
    (small_disk / "ballast").unlink()
    mended = nursery.run("filling", **arguments, fill_in=None)
    assert [report["step"] for report in mended if report["what"] == "started"] == list(range(BREAKS_IN, STEPS))
    assert result_of(mended) == expected(SEED, STEPS, 20_000)


@pytest.mark.parametrize("left", [0, 12, 48])
async def test_a_store_for_which_there_is_no_room_says_so_and_leaves_nothing_open(small_disk: Path, left: int) -> None:
    """So many KB are left, with which making it comes to different points."""
    store, ballast = SqliteStore(small_disk / "runs.db"), small_disk / "ballast"
    fill(ballast)
    os.truncate(ballast, ballast.stat().st_size - 1024 * left)
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match=r"(disk is full|disk I/O error)\. "):
            await store.open()
        assert not [one for one in open_files() if str(small_disk) in one]
    ballast.unlink()
    await store.open()
    await store.close()
    assert [file.name for file in small_disk.iterdir()] == ["runs.db"]


def open_files() -> list[str]:
    """Where the descriptors of this process lead to."""
    places = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            places.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return places
