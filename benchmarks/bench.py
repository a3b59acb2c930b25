"""Speed as a ratio to bare journals: every contender in turn, round after round, in fresh processes.

    make bench                     all workloads, 7 rounds
    python benchmarks/bench.py --rounds 5 --only sequential

Only the ratios count: they compare medians of one interleaved run on one machine. `fresh` is a bare journal
whose write-ahead log is new, `grown` one whose log was written through before the clock started.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from servers.postgres import PostgresServer  # noqa: E402

# workload: (contender, its script and variant) in the order in which they take turns
CONTENDERS: dict[str, list[tuple[str, str, str]]] = {
    "sequential": [
        ("raw fresh", "raw.py", "inline"),
        ("raw grown", "raw.py", "inline-grown"),
        ("holdfast", "ours.py", "sqlite"),
        ("holdfast files", "ours.py", "files"),
    ],
    "concurrent": [
        ("raw fresh", "raw.py", "loopgroup"),
        ("raw grown", "raw.py", "loopgroup-grown"),
        ("holdfast", "ours.py", "sqlite"),
    ],
    "calls": [
        ("steps", "ours.py", "steps"),
        ("steps growing", "ours.py", "growing"),  # those of a pipeline that collects the same results in its state
        ("calls", "ours.py", "calls"),
    ],
    "def-calls": [("steps", "ours.py", "steps"), ("calls", "ours.py", "calls")],
    "recover": [("raw fresh", "raw.py", "loopgroup"), ("holdfast", "ours.py", "sqlite")],
    "first": [("raw fresh", "raw.py", "inline"), ("holdfast", "ours.py", "sqlite")],
    "talk": [("holdfast", "ours.py", "sqlite")],
    "pg-sequential": [("raw", "raw_postgres.py", "inline"), ("holdfast", "ours.py", "postgres")],
    "pg-concurrent": [("raw", "raw_postgres.py", "group"), ("holdfast", "ours.py", "postgres")],
    "pg-idle": [("holdfast", "ours.py", "postgres")],
}
TITLES = {
    "sequential": "200 sequential durable steps (speed of raw = 1; the goal is 0.8 of fresh)",
    "concurrent": "500 concurrent runs of 5 steps (speed of raw = 1; the goal is 0.25 of fresh)",
    "calls": "200 journaled calls in an async function (time of pipeline steps = 1; the goal is at most 1.3)",
    "def-calls": "200 journaled calls in a def function (time of def pipeline steps = 1; the goal is at most 1.3)",
    "recover": "1,000 interrupted runs finished by a fresh process (time of raw = 1; the goal is at most 4)",
    "first": "import and a first durable run of 3 steps (time of raw = 1; the goal is at most 2)",
    "talk": "a conversation of 300 turns of 2 KB",
    "pg-sequential": "200 sequential durable steps on PostgreSQL (speed of raw inserts = 1; the goal is 0.5)",
    "pg-concurrent": "500 concurrent runs of 5 steps on PostgreSQL (speed of raw group commits = 1; the goal is 0.3)",
    "pg-idle": "from rt.start to the first step on an idle fleet (median of 50; the goal is under 100 ms)",
}
FASTER_IS_MORE = {"sequential", "concurrent", "pg-sequential", "pg-concurrent"}
MEASURES = ("raw", "steps")
"""How the names of those begin that the others are compared with."""


@functools.cache
def server() -> PostgresServer:
    """A PostgreSQL server as it comes, which flushes every commit."""
    started = PostgresServer.create(fsync=True)
    atexit.register(started.remove)
    return started


def child(script: str, workload: str, variant: str, folder: str, **env: str) -> dict[str, float]:
    """What a fresh process reports."""
    spawned = {"BENCH_SPAWNED": repr(time.monotonic())}
    done = subprocess.run(
        [sys.executable, str(HERE / script), workload, variant, folder],
        env={**os.environ, **env, **spawned, "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1].removeprefix("RESULT ")) if lines else {}


def measure(script: str, workload: str, variant: str) -> dict[str, float]:
    """One round of one contender, in a folder of its own."""
    if workload.startswith("pg-"):
        with server().database() as url:
            return child(script, workload, variant, url)
    folder = tempfile.mkdtemp(prefix="holdfast-bench-", dir=os.environ.get("BENCH_DIR"))
    try:
        if workload == "recover":
            child(script, "cut", variant, folder, BENCH_CUT="1")
        return child(script, workload, variant, folder)
    finally:
        shutil.rmtree(folder)


def compare(workload: str, rounds: int) -> None:
    """Let the contenders take turns and print their medians and ratios."""
    print(f"\n{TITLES[workload]}", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in CONTENDERS[workload]}
    for _, script, variant in CONTENDERS[workload]:
        measure(script, workload, variant)  # once for nothing, so that bytecode and disk cache are there
    for _ in range(rounds):
        for name, script, variant in CONTENDERS[workload]:
            seconds[name].append(measure(script, workload, variant)["seconds"])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        spread = f"{min(seconds[name]) * 1e3:8.1f} to {max(seconds[name]) * 1e3:8.1f}"
        ratios = "  ".join(
            f"{(measure / median if workload in FASTER_IS_MORE else median / measure):5.2f} of {other}"
            for other, measure in medians.items()
            if other.startswith(MEASURES) and not name.startswith(MEASURES)
        )
        print(f"  {name:15} median {median * 1e3:8.1f} ms  ({spread})  {ratios}", flush=True)


def talk(rounds: int) -> None:
    """Bytes on disk and how the time of a turn grows."""
    print(f"\n{TITLES['talk']}", flush=True)
    results = [measure("ours.py", "talk", "sqlite") for _ in range(rounds)]
    growth = statistics.median(result["last"] / result["first"] for result in results)
    size = results[0]["bytes"] / results[0]["state"]
    print(f"  bytes on disk: {size:.3f} of the final state (the goal is under 1.25)")
    print(f"  the last 50 turns take {growth:.2f} of the first 50 (median; the goal is at most 2.5)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=list(CONTENDERS))
    options = parser.parse_args()
    for workload in [options.only] if options.only else list(CONTENDERS):
        if workload == "talk":
            talk(options.rounds)
        else:
            compare(workload, options.rounds)


if __name__ == "__main__":
    main()
