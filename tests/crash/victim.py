"""The programs that children run: ordinary users of the public API, each safe to type again after a kill."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Pipeline, Runtime
from holdfast.errors import OwnershipLostError, StoreUnavailableError, UsageError
from holdfast.store.locate import locate

from . import counting, fleet_worker, function_programs, functions, shapes
from .opening import open_runtime, set_up
from .scenarios import SCENARIOS
from .steps import Reporter, begin, change, first_state, pipeline
from .stores import url

# Programs


def plain(report: Reporter, *, store: str, run: str, seed: int, steps: int, work: float, ledger: str) -> None:
    """One run of a straight pipeline."""
    set_up(report, ledger)

    async def main() -> None:
        async with open_runtime(store) as rt:
            flow = pipeline("plain", steps, work=work)
            result = await rt.run(flow, first_state(seed), id=run, metadata={"seed": seed})
            report("result", value=repr(result))

    asyncio.run(main())


def scenario(
    report: Reporter, *, store: str, name: str, seed: int, ledger: str, die: tuple[str, int] | None = None
) -> None:
    """One of SCENARIOS; dies before or after its n-th commit if told so, and counts its commits."""
    set_up(report, ledger)
    count = counting.count_commits()
    if die is not None:
        counting.die_at(*die)

    async def main() -> None:
        async with open_runtime(store) as rt:
            await _without_postman(rt)
            result = await {**SCENARIOS, **functions.SCENARIOS, **shapes.SCENARIOS}[name](rt, seed)
        report("result", value=repr(result), commits=count())

    asyncio.run(main())


async def _without_postman(rt: Runtime) -> None:
    # It looks for mail when it has time for it, which would make the number of commits a matter of luck.
    async def carry_nothing() -> None:
        await asyncio.Event().wait()

    rt._now().engine.postman.carry = carry_nothing  # type: ignore[method-assign]


def stoppable(report: Reporter, *, store: str, run: str, seed: int, lease: float, gate: str) -> None:
    """A run whose fourth step waits until somebody opens the FIFO `gate`."""
    set_up(report, None)

    def wait() -> None:
        report("waiting")
        with open(gate, "rb") as opened:
            opened.read()

    flow = pipeline("stoppable", 6, also={3: wait})

    async def main() -> None:
        async with open_runtime(store, lease=lease, heartbeat=lease / 3) as rt:
            try:
                report("result", value=repr(await rt.run(flow, first_state(seed), id=run)))
            except OwnershipLostError as error:
                report("refused", error=type(error).__name__, message=str(error), fence=error.fence)

    asyncio.run(main())


def fill(file: Path) -> None:
    """Let the file take all that is left of the disk."""
    with suppress(OSError), open(file, "wb", buffering=0) as ballast:
        while True:
            ballast.write(b"-" * 512)


def filling(report: Reporter, *, kind: str, folder: str, seed: int, steps: int, fill_in: int | None) -> None:
    """A run in one of whose steps the rest of the disk is filled up."""
    set_up(report, None)
    padding = 20_000  # more than what is left of the last block of a file that counts as full

    async def advance(index: int, state: dict[str, Any]) -> None:
        begin(index)
        change(state, index)
        if index == fill_in:
            fill(Path(folder) / "ballast")

    flow: Pipeline[Any] = Pipeline("filling", advance, total=steps)

    async def main() -> None:
        async with open_runtime(url(kind, Path(folder))) as rt:
            try:
                result = await rt.run(flow, first_state(seed, padding), id="run")
            except StoreUnavailableError as error:
                report("unavailable", message=str(error))
            else:
                report("result", value=repr(result))

    asyncio.run(main())


def forking(report: Reporter, *, kind: str, folder: str, seed: int) -> None:
    """Forks in the middle of its life: what the child inherited, and what it may do with it."""
    set_up(report, None)
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
        async with open_runtime(store) as rt:
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
    "fleet": fleet_worker.work,
    "command": fleet_worker.command,
    **function_programs.PROGRAMS,
}
