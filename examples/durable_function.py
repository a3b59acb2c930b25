"""A plain function that survives being killed: a loop, an if, try and except, retries, and a call that costs money.

    python examples/durable_function.py           # kill -9 it at any time and run it again
    holdfast show trip-1                          # what happened, line by line

Each line that begins with "doing" is work that is really done. Kill it while prices are looked up and run it
again: the prices that it had are found, and it goes on with the next one. Kill it while it says "doing: buying" and
nobody knows whether the ticket was bought: run again, it does not buy a second one but asks you.
The run lives in .holdfast/runs.db, or where $HOLDFAST_STORE says.
"""

from __future__ import annotations

import asyncio
import sys

import holdfast
from holdfast import RetryPolicy, call, current_run, flow, step
from holdfast.errors import RunInterruptedError, RunWaitingError

SECONDS_PER_CALL = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
FARES = {"bergen": 210, "porto": 95, "split": 130}
asked: list[str] = []


@step(retry=RetryPolicy(attempts=3, first_delay=0.1, never=(LookupError,)))
async def look_up(city: str) -> int:
    """The fare. The first request to bergen is lost, and nobody flies to atlantis."""
    print(f"doing: looking up {city}", flush=True)
    await asyncio.sleep(SECONDS_PER_CALL)  # stands for a request
    asked.append(city)
    if city == "bergen" and asked.count(city) == 1:
        raise ConnectionError("lost")
    return FARES[city]


async def buy(city: str) -> str:
    """The number of a ticket. A real service would be given the key, which is the same for every attempt."""
    print(f"doing: buying a ticket to {city}", flush=True)
    await asyncio.sleep(SECONDS_PER_CALL)
    return f"{city}-{current_run().idempotency_key[:6]}"


@flow
async def trip(budget: int) -> str:
    """The cheapest ticket that can be paid."""
    fares: dict[str, int] = {}
    for city in ("bergen", "atlantis", "porto", "split"):
        try:
            fares[city] = await look_up(city)
        except LookupError:
            print(f"no flights to {city}", flush=True)
    print(f"fares: {fares}", flush=True)
    cheapest = min(fares, key=lambda city: fares[city])
    if fares[cheapest] > budget:
        return "we stay at home"
    ticket = await call.options(on_doubt="ask")(buy, cheapest)
    return f"ticket {ticket} for {fares[cheapest]}"


def main() -> None:
    try:
        print(f"result: {holdfast.run(trip, 150, id='trip-1')}")
    except RunWaitingError as waiting:
        print(f"waiting: {waiting.waiting_for}")
        print("""look whether it was bought, and say so:  holdfast answer trip-1 '{"done": false}'""")
        print(
            """                                     or:  holdfast answer trip-1 '{"done": true, "result": "porto-1"}'"""
        )
    except RunInterruptedError:
        print("stopped; the same command goes on")


if __name__ == "__main__":
    main()
