"""Named steps with retries, events and a pause, and everything that was interrupted taken up at the start.

    python examples/named_steps.py                # run it; kill it at any time and run it again

The first step fails twice before it works. Meanwhile a user pauses the run, and it is resumed; kill
the program in between and the pause is still there the next time.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from holdfast import Event, Pipeline, RetryPolicy, Runtime, current_run, step
from holdfast.errors import RunPausedError


@step(retry=RetryPolicy(attempts=3, first_delay=0.1))
async def fetch(state: dict[str, Any]) -> dict[str, Any]:
    """Works at the third attempt."""
    if current_run().attempt < 3:
        raise ConnectionError("the service is not there yet")
    return {**state, "rows": [3, 1, 2]}


@step
async def sort(state: dict[str, Any]) -> dict[str, Any]:
    """Takes a while."""
    await asyncio.sleep(0.2)
    return {**state, "rows": sorted(state["rows"])}


@step
def publish(state: dict[str, Any]) -> dict[str, Any]:
    """A plain function runs in a thread."""
    return {**state, "published": True}


report = Pipeline("nightly-report", [fetch, sort, publish])


def show(event: Event) -> None:
    """One line for each event."""
    print(f"{event.type:15} {event.step or ''} {event.error or ''}".rstrip(), flush=True)


async def main() -> None:
    async with Runtime(*sys.argv[1:2], on_event=show) as rt:  # .holdfast/runs.db unless another is named
        rt.register(report)
        resumed = await rt.recover()
        print(f"{len(resumed)} interrupted runs taken up")
        run = await rt.get("night-1")
        if run is None:
            await rt.start(report, {"night": 1}, id="night-1", metadata={"caller": "cron"})
            await rt.pause("night-1")
        elif run.status == "paused":
            print("it was paused before this program started, and still is")
        try:
            result = await rt.run(report, {"night": 1}, id="night-1")
        except RunPausedError:
            run = await rt.get("night-1")
            print(f"paused at {run.progress:.0f} %" if run else "gone")
            result = await (await rt.resume("night-1")).result()
        print(f"result: {result}")


if __name__ == "__main__":
    asyncio.run(main())
