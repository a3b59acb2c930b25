"""The programs that children run: ordinary users of the public API, each safe to type again after a kill."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import CheckpointPolicy, Event, Pipeline, RetryPolicy, Runtime, current_run, step
from holdfast.errors import OwnershipLostError, RunPausedError, StoreUnavailableError, UsageError
from holdfast.store.locate import locate

from . import counting
from .stores import url

Reporter = Callable[..., None]

_report: Reporter = lambda what, **fields: None  # noqa: E731  (set anew by each program)
_ledger: str | None = None
_runtime: Runtime | None = None


def name_of(index: int) -> str:
    """The name of the step at that place, from 0."""
    return f"step-{index:02}"


def begin(index: int) -> None:
    """Tell the world outside that an attempt begins: the ledger is what no crash takes back."""
    run = current_run()
    line = f"{run.id} {run.step} {run.attempt} {run.idempotency_key} {os.getpid()}\n"
    if _ledger is not None:
        ledger = os.open(_ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(ledger, line.encode())
        os.close(ledger)
    _report("started", run=run.id, step=index, attempt=run.attempt)


def change(state: dict[str, Any], index: int) -> None:
    """What a step does to the state: it grows, and holds what plain JSON would lose."""
    state["done"].append(name_of(index))
    state["sum"] += (index + 1) ** 23
    state["trail"].append((index, bytes(range(index)), {index}))
    state["by_step"][index] = ("é" * (index % 7), index / 3, None)
    if state["padding"]:
        state["padding"] = chr(ord("a") + index % 26) * len(state["padding"])


def make_step(index: int, work: float, retry: RetryPolicy | None = None, fails: int = 0) -> Any:
    """One step; the even ones are async, the odd ones run in a thread. Attempts up to `fails` raise."""

    def effect(state: dict[str, Any]) -> None:
        begin(index)
        change(state, index)  # a failing attempt has changed its state as well: that must be dropped
        if current_run().attempt <= fails:
            raise OSError(f"{name_of(index)} does not feel like it")

    async def in_loop(state: dict[str, Any]) -> None:
        effect(state)
        await asyncio.sleep(work)

    def in_thread(state: dict[str, Any]) -> None:
        effect(state)
        time.sleep(work)

    return step(name=name_of(index), retry=retry)(in_thread if index % 2 else in_loop)


def first_state(seed: int, padding: int = 0) -> dict[str, Any]:
    """The input of a run."""
    return {"seed": seed, "done": [], "sum": seed, "trail": [], "by_step": {}, "padding": "-" * padding}


def expected(seed: int, steps: int, padding: int = 0) -> str:
    """What the result of a run must be, worked out without a runtime."""
    state = first_state(seed, padding)
    for index in range(steps):
        change(state, index)
    return repr(state)


def pipeline(
    name: str,
    steps: int,
    *,
    work: float = 0.0,
    policy: CheckpointPolicy | None = None,
    fails: dict[int, int] | None = None,
) -> Pipeline[Any]:
    """A straight pipeline of such steps."""
    retry = RetryPolicy(attempts=1000, first_delay=0.0005, factor=1.0, jitter=0.0)
    made = [
        make_step(index, work, retry if fails and index in fails else None, (fails or {}).get(index, 0))
        for index in range(steps)
    ]
    return Pipeline(name, made, policy=policy)


def _on_event(event: Event) -> None:
    if event.type in ("checkpointed", "created", "completed", "paused", "rewound", "resumed") and event.seq is not None:
        _report("acknowledged", run=event.run, seq=event.seq, type=event.type)


def _set_up(report: Reporter, ledger: str | None) -> None:
    global _report, _ledger
    _report, _ledger = report, ledger


def _open(store: Any, **settings: Any) -> Runtime:
    global _runtime
    # Nobody may wait for a lease here: a dead owner on this machine is recognised at once.
    given = {"lease": 3600.0, "heartbeat": 3000.0, "crash_limit": 100_000, "on_event": _on_event, "grace": 0.0}
    _runtime = Runtime(store, **(given | settings))
    return _runtime


# Programs


def plain(report: Reporter, *, store: str, run: str, seed: int, steps: int, work: float, ledger: str) -> None:
    """One run of a straight pipeline."""
    _set_up(report, ledger)

    async def main() -> None:
        async with _open(store) as rt:
            flow = pipeline("plain", steps, work=work)
            result = await rt.run(flow, first_state(seed), id=run, metadata={"seed": seed})
            report("result", value=repr(result))

    asyncio.run(main())


def scenario(
    report: Reporter, *, store: str, name: str, seed: int, ledger: str, die: tuple[str, int] | None = None
) -> None:
    """One of SCENARIOS; dies before or after its n-th commit if told so, and counts its commits."""
    _set_up(report, ledger)
    count = counting.count_commits()
    if die is not None:
        counting.die_at(*die)

    async def main() -> None:
        async with _open(store) as rt:
            await _without_postman(rt)
            result = await SCENARIOS[name](rt, seed)
        report("result", value=repr(result), commits=count())

    asyncio.run(main())


async def _without_postman(rt: Runtime) -> None:
    # It looks for mail when it has time for it, which would make the number of commits a matter of luck.
    async def carry_nothing() -> None:
        await asyncio.Event().wait()

    assert rt._engine is not None
    rt._engine._carry_mail = carry_nothing  # type: ignore[method-assign]


STEPS = 7


async def run_plainly(rt: Runtime, seed: int) -> Any:
    """Every step is saved."""
    return await rt.run(pipeline("plain", STEPS), first_state(seed), id="a")


async def run_with_retries(rt: Runtime, seed: int) -> Any:
    """Two steps fail at first."""
    return await rt.run(pipeline("retries", STEPS, fails={1: 2, 4: 1}), first_state(seed), id="a")


async def pause_and_resume(rt: Runtime, seed: int) -> Any:
    """The third step asks for a pause of its own run; it is resumed whenever it is found paused."""
    flow = pipeline("pausing", STEPS)
    inner = flow._steps[name_of(2)].fn

    async def pausing(state: dict[str, Any]) -> None:
        await inner(state)
        assert _runtime is not None
        await _runtime.pause(current_run().id)

    flow._steps[name_of(2)].fn = pausing
    while True:
        with suppress(RunPausedError):
            return await rt.run(flow, first_state(seed), id="a")
        await rt.resume("a")


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
    steps, padding = RESULTS.get(name, (STEPS, 0))
    return expected(seed, steps, padding)


def stoppable(report: Reporter, *, store: str, run: str, seed: int, lease: float, gate: str | None) -> None:
    """A run whose third step, in its first attempt, waits until somebody opens the FIFO `gate`."""
    _set_up(report, None)
    flow = pipeline("stoppable", 6)
    inner = flow._steps[name_of(3)].fn

    def waiting(state: dict[str, Any]) -> None:
        inner(state)
        if gate is not None:
            report("waiting")
            with open(gate, "rb") as opened:
                opened.read()

    flow._steps[name_of(3)].fn = waiting

    async def main() -> None:
        async with _open(store, lease=lease, heartbeat=lease / 3) as rt:
            try:
                report("result", value=repr(await rt.run(flow, first_state(seed), id=run)))
            except OwnershipLostError as error:
                report("refused", error=type(error).__name__, message=str(error), fence=error.fence)

    asyncio.run(main())


def _fill(file: Path) -> None:
    with suppress(OSError), open(file, "wb", buffering=0) as ballast:
        while True:
            ballast.write(b"-" * 512)


def filling(report: Reporter, *, kind: str, folder: str, seed: int, steps: int, fill_in: int | None) -> None:
    """A run in one of whose steps the rest of the disk is filled up."""
    _set_up(report, None)
    padding = 20_000  # more than what is left of the last block of a file that counts as full

    async def advance(index: int, state: dict[str, Any]) -> None:
        begin(index)
        change(state, index)
        if index == fill_in:
            _fill(Path(folder) / "ballast")

    flow: Pipeline[Any] = Pipeline("filling", advance, total=steps)

    async def main() -> None:
        async with _open(url(kind, Path(folder))) as rt:
            try:
                result = await rt.run(flow, first_state(seed, padding), id="run")
            except StoreUnavailableError as error:
                report("unavailable", message=str(error))
            else:
                report("result", value=repr(result))

    asyncio.run(main())


def forking(report: Reporter, *, kind: str, folder: str, seed: int) -> None:
    """Forks in the middle of its life: what the child inherited, and what it may do with it."""
    _set_up(report, None)
    place, flow = url(kind, Path(folder)), pipeline("plain", 4)
    store = locate(place)

    async def in_child(rt: Runtime) -> None:
        try:
            await rt.get("before")
        except UsageError as error:
            report("told", message=str(error))
        (head,) = await store.read_heads(["before"])
        report("read", seq=head and head.seq, status=head and head.status)
        async with Runtime(place) as own:
            report("ran", value=repr(await own.run(flow, first_state(seed), id="of-child")))

    async def main() -> None:
        async with _open(store) as rt:
            await rt.run(flow, first_state(seed), id="before")
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    asyncio.run(in_child(rt))
                    code = 0
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            report("child ended", status=status)
            report("result", value=repr(await rt.run(flow, first_state(seed), id="after")))

    asyncio.run(main())


PROGRAMS: dict[str, Callable[..., None]] = {
    "plain": plain,
    "scenario": scenario,
    "stoppable": stoppable,
    "filling": filling,
    "forking": forking,
}
