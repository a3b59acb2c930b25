"""The interesting runs, as programs that can be typed again after a kill and come to the same end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import CheckpointPolicy, Runtime
from holdfast.errors import RunCancelledError, RunFailedError, RunPausedError

from .steps import Outside, expected, first_state, name_of, pipeline

STEPS = 7


async def run_plainly(rt: Runtime, seed: int) -> Any:
    """Every step is saved."""
    return await rt.run(pipeline("plain", STEPS), first_state(seed), id="a")


async def run_with_retries(rt: Runtime, seed: int) -> Any:
    """Two steps fail at first."""
    return await rt.run(pipeline("retries", STEPS, fails={1: 2, 4: 1}), first_state(seed), id="a")


async def pause_and_resume(rt: Runtime, seed: int) -> Any:
    """The third step asks for a pause of its own run; it is resumed whenever it is found paused."""
    flow = pipeline("pausing", STEPS, also={2: lambda: rt.pause("a")})
    while True:
        with suppress(RunPausedError):
            return await rt.run(flow, first_state(seed), id="a")
        await rt.resume("a")


async def fail_and_resume(rt: Runtime, seed: int) -> Any:
    """The fourth step fails for good the first time it is tried; the run is resumed whenever it has failed."""

    def fail_once() -> None:
        assert Outside.ledger is not None
        if Path(Outside.ledger).read_text().count(f" {name_of(3)} ") == 1:
            raise OSError("once")

    flow = pipeline("failing", STEPS, also={3: fail_once})
    while True:
        with suppress(RunFailedError):
            return await rt.run(flow, first_state(seed), id="a")
        await rt.resume("a")


async def cancel_in_the_middle(rt: Runtime, seed: int) -> Any:
    """The third step asks for its own run to be cancelled, which is final."""
    flow = pipeline("cancelled", STEPS, also={2: lambda: rt.cancel("a", "enough")})
    try:
        return await rt.run(flow, first_state(seed), id="a")
    except RunCancelledError as error:
        return error.reason


async def save_every_third(rt: Runtime, seed: int) -> Any:
    """The policy leaves saves out."""
    policy = CheckpointPolicy(every_n_steps=3)
    return await rt.run(pipeline("sparing", STEPS + 1, policy=policy), first_state(seed), id="a")


async def keep_two(rt: Runtime, seed: int) -> Any:
    """Old checkpoints are let go and the log is compacted on the way."""
    flow = pipeline("forgetful", STEPS + 5, policy=CheckpointPolicy(keep_latest=2))
    return await rt.run(flow, first_state(seed, padding=3000), id="a")


async def delete_at_end(rt: Runtime, seed: int) -> Any:
    """The history goes when the run has finished; its result stays."""
    flow = pipeline("tidy", STEPS, policy=CheckpointPolicy(on_finish="delete"))
    await rt.run(flow, first_state(seed), id="a")
    return await rt.run(flow, first_state(seed), id="a")


async def _third(rt: Runtime) -> str:
    """The checkpoint after the third step of the run a."""
    (third,) = [checkpoint.id async for checkpoint in rt.checkpoints("a") if checkpoint.step == 3]
    return third


async def fork_in_the_middle(rt: Runtime, seed: int) -> Any:
    """A second run begins at a checkpoint of the first."""
    flow = pipeline("plain", STEPS)
    await rt.run(flow, first_state(seed), id="a")
    if await rt.get("b") is None:
        await rt.fork(await _third(rt), id="b")
    return await rt.run(flow, id="b")


async def rewind_at_end(rt: Runtime, seed: int) -> Any:
    """A finished run goes on from an older checkpoint, once."""
    flow = pipeline("plain", STEPS)
    await rt.run(flow, first_state(seed), id="a")
    if not [event async for event in rt.events("a") if event.type == "rewound"]:
        await rt.rewind(await _third(rt))
    return await rt.run(flow, id="a")


async def delete_and_start_again(rt: Runtime, seed: int) -> Any:
    """A run is removed, and its id used again."""
    flow = pipeline("plain", STEPS - 3)
    if await rt.get("b") is None:
        await rt.run(flow, first_state(seed + 1), id="a")
        await rt.run(flow, first_state(seed + 1), id="b")
    if (found := await rt.get("a")) is not None and found.flow == "plain":
        await rt.delete("a")
    return await rt.run(pipeline("again", STEPS), first_state(seed), id="a")


SCENARIOS: dict[str, Callable[[Runtime, int], Awaitable[Any]]] = {
    "plain": run_plainly,
    "retries": run_with_retries,
    "pause": pause_and_resume,
    "fail": fail_and_resume,
    "cancel": cancel_in_the_middle,
    "every_n": save_every_third,
    "keep_latest": keep_two,
    "on_finish_delete": delete_at_end,
    "fork": fork_in_the_middle,
    "rewind": rewind_at_end,
    "delete": delete_and_start_again,
}
RESULTS = {"every_n": (STEPS + 1, 0), "keep_latest": (STEPS + 5, 3000)}


def scenario_result(name: str, seed: int) -> str:
    """What a scenario must come to."""
    if name == "cancel":
        return repr("enough")
    steps, padding = RESULTS.get(name, (STEPS, 0))
    return expected(seed, steps, padding)
