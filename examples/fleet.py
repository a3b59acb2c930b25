"""Three workers share twelve runs; one of the workers is killed, and nothing that finished is done again.

    python examples/fleet.py                      # on .holdfast/runs.db, or where $HOLDFAST_STORE says

With a server the workers may be on different machines: HOLDFAST_STORE=postgresql://app@db/app. This program puts the
runs into two queues and starts the workers as `holdfast worker examples/fleet.py` would. "doing" is work that is
really done, by whichever worker. No more than two runs of one customer go at once, in the whole fleet.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys

from holdfast import Pipeline, RunLimit, Runtime

SECONDS_PER_STEP = float(os.environ.get("SECONDS_PER_STEP", "0.3"))


async def step(name: str, state: dict[str, str]) -> dict[str, str]:
    print(f"doing: {name} of {state['order']} in process {os.getpid()}", flush=True)
    await asyncio.sleep(SECONDS_PER_STEP)
    return {**state, name: "done"}


async def pack(state: dict[str, str]) -> dict[str, str]:
    return await step("pack", state)


async def ship(state: dict[str, str]) -> dict[str, str]:
    return await step("ship", state)


order = Pipeline("order", [pack, ship], limit=RunLimit(per_key=2))


def worker() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "holdfast", "worker", __file__, "--quiet", "--lease", "3"])


async def main() -> None:
    batch = secrets.token_hex(2)
    async with Runtime() as rt:  # this one only puts runs into queues and waits for their results
        handles = [
            await rt.start(
                order,
                {"order": f"{batch}-{n}"},
                id=f"{batch}-{n}",
                queue="express" if n % 3 == 0 else "standard",
                key=f"customer-{n % 4}",
            )
            for n in range(12)
        ]
        workers = [worker() for _ in range(3)]
        try:
            await handles[0].result()
            print(f"kill -9 of process {workers[0].pid}", flush=True)
            workers[0].kill()
            for handle in handles:
                result = await handle.result()
                print(f"{handle.id}: packed and shipped" if len(result) == 3 else result, flush=True)
        finally:
            for one in workers:
                one.terminate()
            for one in workers:
                one.wait()


if __name__ == "__main__":
    asyncio.run(main())
