"""Holdfast on the same workloads: python ours.py WORKLOAD VARIANT FOLDER (a store, or what is compared)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import workloads as w

import holdfast
from holdfast import blocking

blocked = 0
ticks: list[float] = []


async def add(step: int, state: dict[str, Any]) -> None:
    state["items"].append(w.payload(step))


async def add_until_cut(step: int, state: dict[str, Any]) -> None:
    global blocked
    if step == w.CUT_DONE and os.environ.get("BENCH_CUT"):
        blocked += 1
        await asyncio.Event().wait()
    state["items"].append(w.payload(step))


async def say(step: int, state: dict[str, Any]) -> None:
    ticks.append(time.perf_counter())
    state["messages"].append(w.message(step))


# What calls are compared with: steps that write as much as a call does and carry nothing else along.
async def replace(step: int, state: dict[str, Any]) -> dict[str, Any]:
    return w.payload(step)


def replace_in_thread(step: int, state: dict[str, Any]) -> dict[str, Any]:
    return w.payload(step)


async def find(step: int) -> dict[str, Any]:
    return w.payload(step)


def find_in_thread(step: int) -> dict[str, Any]:
    return w.payload(step)


@holdfast.flow
async def collect(state: dict[str, Any]) -> dict[str, Any]:
    for step in range(w.STEPS):
        state["items"].append(await holdfast.call(find, step))
    return state


@holdfast.flow
def collect_in_thread(state: dict[str, Any]) -> dict[str, Any]:
    for step in range(w.STEPS):
        state["items"].append(blocking.call(find_in_thread, step))
    return state


SEQUENTIAL = holdfast.Pipeline("sequential", add, total=w.STEPS)
BODIES: dict[tuple[str, str], Any] = {
    ("calls", "growing"): SEQUENTIAL,
    ("calls", "steps"): holdfast.Pipeline("replace", replace, total=w.STEPS),
    ("calls", "calls"): collect,
    ("def-calls", "steps"): holdfast.Pipeline("replace-in-thread", replace_in_thread, total=w.STEPS),
    ("def-calls", "calls"): collect_in_thread,
}
SMALL = holdfast.Pipeline("small", add, total=w.RUN_STEPS)
CUT = holdfast.Pipeline("cut", add_until_cut, total=w.CUT_STEPS)
FIRST = holdfast.Pipeline("first", add, total=3)
TALK = holdfast.Pipeline("talk", say, total=w.TURNS)


begun: list[float] = []


async def begin(state: None) -> None:
    begun.append(time.perf_counter())


BEGIN = holdfast.Pipeline("begin", [begin])


async def from_start_to_step(rt: holdfast.Runtime) -> float:
    """Seconds from putting a run into a queue to its first step, in a worker that was idle."""
    started = time.perf_counter()
    handle = await rt.start(BEGIN, queue="bench")
    await handle.result()
    await asyncio.sleep(0.05)  # until the worker is idle again
    return begun[-1] - started


async def main(workload: str, variant: str, folder: str) -> None:
    where = {"files": f"file:{folder}/runs", "postgres": folder}.get(variant, f"sqlite:{folder}/runs.db")
    workload = workload.removeprefix("pg-")
    if workload != "first":
        w.warm()
    async with holdfast.Runtime(where, crash_limit=1000) as rt:
        started = time.perf_counter()
        if workload in ("sequential", "calls", "def-calls"):
            result: Any = await rt.run(BODIES.get((workload, variant), SEQUENTIAL), {"items": []}, id="one")
            assert variant == "steps" or len(result["items"]) == w.STEPS
            w.report(seconds=time.perf_counter() - started)
        elif workload == "concurrent":
            await asyncio.gather(*(rt.run(SMALL, {"items": []}, id=f"run-{k}") for k in range(w.RUNS)))
            w.report(seconds=time.perf_counter() - started)
        elif workload == "talk":
            result = await rt.run(TALK, {"messages": []}, id="one")
            ticks.append(time.perf_counter())
        elif workload == "cut":
            await asyncio.gather(*(rt.start(CUT, {"items": []}, id=f"run-{k}") for k in range(w.CUT_RUNS)))
            while blocked < w.CUT_RUNS:
                await asyncio.sleep(0.01)
            os._exit(0)
        elif workload == "recover":
            rt.register(CUT)
            handles = await rt.recover()
            await asyncio.gather(*(handle.result() for handle in handles))
            w.report(seconds=w.since_spawn(), found=len(handles))
        elif workload == "idle":
            import statistics  # not above: the start of this program is measured too

            async with holdfast.Runtime(where, recover=True) as worker:
                worker.register(BEGIN)
                await asyncio.sleep(0.2)
                w.report(seconds=statistics.median([await from_start_to_step(rt) for _ in range(w.STARTS)]))
        elif workload == "first":
            await rt.run(FIRST, {"items": []}, id="one")
            w.report(seconds=w.since_spawn())
    if workload == "talk":
        state = len(json.dumps(result, separators=(",", ":")).encode())
        first, last = ticks[w.EDGE] - ticks[0], ticks[-1] - ticks[-1 - w.EDGE]
        w.report(bytes=w.folder_bytes(folder), state=state, first=first, last=last)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
