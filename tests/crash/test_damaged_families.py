"""Damage in a child or its parent: told to the parent as it is, by run and seq; the families beside it go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Runtime, ask, flow, spawn
from holdfast.errors import RunFailedError, RunWaitingError, StoreDamagedError
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import ManualClock
from waiting import until_status

from .test_damage import Patient, tamper


@flow
async def saying(text: str) -> str:
    return f"it says {text}"


@flow
async def failing(text: str) -> str:
    raise LookupError(text)


@flow
async def asking(text: str) -> str:
    await ask("child?")
    return text


@flow
async def parent(name: str) -> Any:
    """Waits for a person before it looks at its child."""
    child = spawn({"saying": saying, "failing": failing, "asking": asking}[name], "made", id=f"child-{name}")
    await ask("go?")
    return await child


@flow
async def parent_of_asking(name: str) -> Any:
    return await spawn(asking, name, id=f"child-{name}")


async def leave_behind(url: str, name: str, status: str) -> None:
    """The run p asks, and its child has come to that status."""
    async with Runtime(url) as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(parent, name, id="p", until="settled")
        await until_status(rt, f"child-{name}", status)
        await rt.answer("p", True)


def in_sqlite(folder: Path) -> Callable[[str, str], None]:
    def change(old: str, new: str) -> None:
        tamper(
            folder / "runs.db", f"update entries set body = replace(body, '{old}', '{new}') where kind = 'completed'"
        )

    return change


def in_files(folder: Path) -> Callable[[str, str], None]:
    def change(old: str, new: str) -> None:
        log = folder / "runs" / "child-saying" / "log.jsonl"
        log.write_bytes(log.read_bytes().replace(old.encode(), new.encode()))

    return change


PLACES = {"sqlite": ("sqlite:{}/runs.db", in_sqlite), "file": ("file:{}/runs", in_files)}


@pytest.mark.parametrize("recover", [False, True])
@pytest.mark.parametrize("kind", PLACES)
async def test_a_parent_fails_at_once_with_the_damage_of_its_child_and_goes_on_once_that_is_mended(
    tmp_path: Path, kind: str, recover: bool
) -> None:
    url, way = PLACES[kind][0].format(tmp_path), PLACES[kind][1](tmp_path)
    await leave_behind(url, "saying", "completed")
    way("it says", "it sayz")
    async with Runtime(url, recover=recover) as rt, asyncio.timeout(20):
        with pytest.raises(RunFailedError, match=r"StoreDamagedError: child-saying@\d+ is damaged"):
            await rt.run(parent, "saying", id="p")
        failed = await rt.get("p")
        assert failed is not None
        assert failed.attempt == 1
        assert await rt.run(saying, "sound", id="other") == "it says sound"
        way("it sayz", "it says")
        assert await (await rt.resume("p")).result() == "it says made"


@pytest.mark.parametrize("error", ["{", "[1]", "{}", '{"step":"s","error":7}'])
async def test_a_parent_whose_child_does_not_say_how_it_ended_fails_with_that(tmp_path: Path, error: str) -> None:
    await leave_behind(f"sqlite:{tmp_path}/runs.db", "failing", "failed")
    tamper(tmp_path / "runs.db", f"update runs set error = '{error}' where id = 'child-failing'")
    async with Runtime(f"sqlite:{tmp_path}/runs.db") as rt, asyncio.timeout(20):
        with pytest.raises(RunFailedError, match="child-failing is damaged: how it ended cannot be read"):
            await rt.run(parent, "failing", id="p")
        with pytest.raises(StoreDamagedError, match="how it ended cannot be read"):
            await rt.run(failing, "made", id="child-failing")


@flow
async def parent_by_id(child: str) -> Any:
    return await spawn(saying_when_asked, child, id=child)


@flow
async def saying_when_asked(text: str) -> str:
    await ask("child?")
    return text


async def leave_untold(file: Path, *children: str) -> None:
    """Parents whose children have ended; whoever drove these died before their parents were told."""
    async with Runtime(f"sqlite:{file}") as rt:
        for child in children:
            with pytest.raises(RunWaitingError):
                await rt.run(parent_by_id, child, id=f"of-{child}", until="settled")
    async with Runtime(f"sqlite:{file}") as rt:
        for child in children:
            await rt.answer(child, True)
            assert await rt.run(saying_when_asked, child, id=child) == child
    tamper(file, "delete from inbox")


@pytest.mark.parametrize("recover", [False, True])
async def test_a_damaged_parent_does_not_keep_others_from_what_their_children_came_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recover: bool
) -> None:
    file = tmp_path / "runs.db"
    await leave_untold(file, "sound", "damaged")  # the newest is looked at first
    tamper(
        file, "update entries set body = replace(body, 'child', 'chilD') where body like '%damaged%' and kind = 'wait'"
    )
    async with Runtime(f"sqlite:{file}", recover=recover, concurrency=1) as rt, asyncio.timeout(20):
        rt.register(parent_by_id, saying_when_asked)
        if recover:
            await until_status(rt, "of-sound", "completed")
            assert "run of-damaged was not resumed: of-damaged@" in caplog.text
        else:
            both = [rt.run(parent_by_id, child, id=f"of-{child}") for child in ("damaged", "sound")]
            damaged, sound = await asyncio.gather(*both, return_exceptions=True)
            assert isinstance(damaged, StoreDamagedError)
            assert damaged.run_id == "of-damaged"
            assert damaged.seq
            assert sound == "sound"


async def test_a_child_that_is_damaged_before_its_end_is_told_and_its_parent_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "runs.db"
    async with Runtime(f"sqlite:{file}") as rt:
        with pytest.raises(RunWaitingError):
            await rt.run(parent_by_id, "child", id="p", until="settled")
    tamper(file, "update runs set status = 'interrupted' where id = 'child'")
    tamper(file, "update entries set body = replace(body, 'child?', 'chilD?') where kind = 'wait'")
    store = Patient(SqliteStore(file))
    async with Runtime(store) as rt, asyncio.timeout(20):
        rt.register(saying_when_asked)
        for _ in range(5):
            with pytest.raises(RunWaitingError):
                await rt.run(parent_by_id, "child", id="p", until="settled")
        assert store.claims <= 2  # a runtime that opens prunes as well
        assert caplog.text.count("run child was not resumed: child@2 is damaged") == 1


def damage_log(folder: Path, run: str) -> None:
    log = folder / "runs" / run / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"entries"', b'"entrieS"'))


async def test_who_asks_for_a_sound_run_is_not_told_of_the_damage_of_another(tmp_path: Path) -> None:
    async with Runtime(f"file:{tmp_path}/runs") as rt:
        for run in ("damaged", "sound"):
            await rt.run(saying, "made", id=run)
    damage_log(tmp_path, "damaged")
    async with Runtime(f"file:{tmp_path}/runs") as rt:
        damaged, sound = await asyncio.gather(rt.get("damaged"), rt.get("sound"), return_exceptions=True)
        assert isinstance(damaged, StoreDamagedError)
        assert damaged.run_id == "damaged"
        assert not isinstance(sound, BaseException)
        assert sound is not None
        assert sound.status == "completed"


async def test_a_damaged_parent_keeps_its_children_and_no_other_run_from_being_pruned(
    tmp_path: Path, clock: ManualClock
) -> None:
    url = f"file:{tmp_path}/runs"
    async with Runtime(url, clock=clock, policy=CheckpointPolicy(ttl=60.0)) as rt:
        for run in ("damaged", "sound"):
            await rt.run(saying, "made", id=run)
            await rt.run(saying, "made", id=f"of-{run}", parent=run)
    damage_log(tmp_path, "damaged")
    clock.advance(61)
    async with Runtime(url, clock=clock) as rt:
        await rt.prune()
        lost = [run for run in ("sound", "of-sound", "of-damaged") if await rt.load(run) is None]
        assert lost == ["sound", "of-sound"]
