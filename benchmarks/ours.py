"""Holdfast on the same workloads: python ours.py WORKLOAD STORE FOLDER"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import workloads as w

import holdfast

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


SEQUENTIAL = holdfast.Pipeline("sequential", add, total=w.STEPS)
SMALL = holdfast.Pipeline("small", add, total=w.RUN_STEPS)
CUT = holdfast.Pipeline("cut", add_until_cut, total=w.CUT_STEPS)
FIRST = holdfast.Pipeline("first", add, total=3)
TALK = holdfast.Pipeline("talk", say, total=w.TURNS)


async def main(workload: str, store: str, folder: str) -> None:
    where = f"sqlite:{folder}/runs.db" if store == "sqlite" else f"file:{folder}/runs"
    if workload != "first":
        w.warm()
    async with holdfast.Runtime(where, crash_limit=1000) as rt:
        started = time.perf_counter()
        if workload == "sequential":
            result: Any = await rt.run(SEQUENTIAL, {"items": []}, id="one")
            assert len(result["items"]) == w.STEPS
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
        elif workload == "first":
            await rt.run(FIRST, {"items": []}, id="one")
            w.report(seconds=w.since_spawn())
    if workload == "talk":
        state = len(json.dumps(result, separators=(",", ":")).encode())
        first, last = ticks[w.EDGE] - ticks[0], ticks[-1] - ticks[-1 - w.EDGE]
        w.report(bytes=w.folder_bytes(folder), state=state, first=first, last=last)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
