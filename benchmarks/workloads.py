"""The sizes and payloads that every contender shares."""

from __future__ import annotations

import functools
import json
import os
import random
import time
from typing import Any

STEPS = 200
RUNS, RUN_STEPS = 500, 5
TURNS, EDGE, MESSAGE_BYTES = 300, 50, 2000
STARTS = 50
CUT_RUNS, CUT_STEPS, CUT_DONE = 1000, 5, 3

WORDS = [
    *("agent", "plan", "step", "verify", "estimate", "compare", "contract", "clause", "liability", "revenue"),
    *("quarter", "forecast", "analysis", "hypothesis", "experiment", "measurement", "temperature", "pressure"),
    *("voltage", "sensor", "firmware", "search", "result", "tool", "call", "function", "returned", "error"),
    *("retry", "database", "schema", "column", "migration", "deploy", "service", "latency", "timeout", "request"),
]


@functools.cache
def payload(i: int) -> dict[str, Any]:
    """About 200 bytes of JSON, different on every step. Never changed by anybody."""
    r = random.Random(i)
    return {
        "step": i,
        "name": f"step-{i:04d}",
        "score": round(r.random(), 6),
        "tags": [r.choice(WORDS) for _ in range(4)],
        "note": " ".join(r.choice(WORDS) for _ in range(17))[:90],
        "ok": True,
    }


@functools.cache
def message(i: int) -> dict[str, Any]:
    """One chat message of about 2 KB of varied text."""
    r = random.Random(1000 + i)
    text = " ".join(r.choice(WORDS) for _ in range(400))
    return {
        "id": f"msg-{r.getrandbits(64):016x}",
        "role": "user" if i % 2 == 0 else "assistant",
        "ts": 1760000000.0 + i * 1.37,
        "content": text[: MESSAGE_BYTES - 110],
    }


def warm() -> None:
    """Build all payloads before the clock starts."""
    for i in range(STEPS):
        payload(i)
    for i in range(TURNS):
        message(i)


def since_spawn() -> float:
    """Seconds since the parent started this process, so that the interpreter's own start counts."""
    return time.monotonic() - float(os.environ["BENCH_SPAWNED"])


def folder_bytes(folder: str) -> int:
    """The size of all files in a folder."""
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


def report(**figures: Any) -> None:
    """Print the figures of this process for the one that compares."""
    print("RESULT", json.dumps(figures), flush=True)
