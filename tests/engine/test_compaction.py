"""A log that was compacted in the middle of a segment still gives every checkpoint that is kept."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointPolicy, Pipeline, Runtime
from holdfast.errors import RunFailedError


def grow(step: int, state: dict[str, Any]) -> None:
    """A step that changes most of the state, so that dropping history soon pays."""
    state["done"].append(step)
    state["text"] = chr(ord("a") + step % 26) * len(state["text"])


@pytest.mark.parametrize("keep", [1, 2, 3, 7])
async def test_every_kept_checkpoint_can_be_loaded_at_every_length_of_the_run(tmp_path: Path, keep: int) -> None:
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", durability="process") as rt:
        for total in range(1, 24):
            flow = Pipeline(f"flow-{total}", grow, total=total, policy=CheckpointPolicy(keep_latest=keep))
            run = f"run-{total}"
            await rt.run(flow, {"done": [], "text": "-" * 2500}, id=run)
            kept = [checkpoint async for checkpoint in rt.checkpoints(run)]
            assert [checkpoint.step for checkpoint in kept] == list(range(total + 1))[-keep:]
            for checkpoint in kept:
                assert checkpoint.state["done"] == list(range(checkpoint.step))
                loaded = await rt.load(checkpoint.id)
                assert loaded is not None
                assert loaded.state == checkpoint.state


async def test_a_run_whose_log_was_compacted_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    def stop_once(step: int, state: dict[str, Any]) -> None:
        if step in broken:
            broken.discard(step)
            raise OSError("once")
        grow(step, state)

    broken = set(range(2, 30))
    flow = Pipeline("flow", stop_once, total=30, policy=CheckpointPolicy(keep_latest=2))
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", durability="process") as rt:
        handle = await rt.start(flow, {"done": [], "text": "-" * 2500}, id="run")
        while broken:
            with pytest.raises(RunFailedError, match="once"):
                await handle.result()
            handle = await rt.resume("run")
        assert (await handle.result())["done"] == list(range(30))


@pytest.mark.parametrize("fails", [False, True], ids=["a run that completes", "a run that fails"])
@pytest.mark.parametrize("keep", [1, 2])
async def test_rewinds_that_finish_no_step_leave_no_more_than_what_is_kept(
    tmp_path: Path, fails: bool, keep: int
) -> None:
    def stop_at_last(step: int, state: dict[str, Any]) -> None:
        if fails and step == 3:
            raise OSError("again")
        grow(step, state)

    flow = Pipeline("flow", stop_at_last, total=4, policy=CheckpointPolicy(keep_latest=keep))
    size = 5000
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", durability="process") as rt:
        handle = await rt.start(flow, {"done": [], "text": "-" * size}, id="run")
        for _ in range(12):
            with pytest.raises(RunFailedError, match="again") if fails else nullcontext():
                await handle.result()
            handle = await rt.rewind("run")
        with pytest.raises(RunFailedError, match="again") if fails else nullcontext():
            await handle.result()
        assert len([checkpoint async for checkpoint in rt.checkpoints("run")]) == keep
        entries = await rt._now().store.read_entries("run")
        assert sum(len(entry.body) for entry in entries) < (2 * keep + 2) * size


async def test_rewinds_that_finish_one_step_each_leave_no_more_than_what_is_kept(tmp_path: Path) -> None:
    flow, size = Pipeline("flow", grow, total=4, policy=CheckpointPolicy(keep_latest=2)), 5000
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", durability="process") as rt:
        await rt.run(flow, {"done": [], "text": "-" * size}, id="run")
        for _ in range(12):
            oldest, _ = [checkpoint.id async for checkpoint in rt.checkpoints("run")]
            await (await rt.rewind(oldest)).result()
        entries = await rt._now().store.read_entries("run")
        assert sum(len(entry.body) for entry in entries) < 8 * size
