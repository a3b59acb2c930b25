"""The steps that are tortured: each tells the world outside that it begins, and changes a growing state."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from holdfast import CheckpointPolicy, Pipeline, RetryPolicy, current_run, step

Reporter = Callable[..., None]


class Outside:
    """Where the steps of this process tell what they do."""

    ledger: str | None = None
    report: Reporter = staticmethod(lambda what, **fields: None)


def name_of(index: int) -> str:
    """The name of the step at that place, from 0."""
    return f"step-{index:02}"


def begin(index: int) -> None:
    """Tell the world outside that a step or a call begins: the ledger is what no crash takes back."""
    run = current_run()
    line = f"{run.id} {run.call or run.step} {run.attempt} {run.idempotency_key} {os.getpid()} {time.time():.6f}\n"
    if Outside.ledger is not None:
        ledger = os.open(Outside.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(ledger, line.encode())
        os.close(ledger)
    Outside.report("started", run=run.id, step=index, attempt=run.attempt)


def change(state: dict[str, Any], index: int) -> None:
    """What a step does to the state: it grows, and holds what plain JSON would lose."""
    state["done"].append(name_of(index))
    state["sum"] += (index + 1) ** 23
    state["trail"].append((index, bytes(range(index)), {index}))
    state["by_step"][index] = ("é" * (index % 7), index / 3, None)
    if state["padding"]:
        state["padding"] = chr(ord("a") + index % 26) * len(state["padding"])


def make_step(
    index: int, work: float, retry: RetryPolicy | None = None, fails: int = 0, also: Callable[[], Any] | None = None
) -> Any:
    """One step; the even ones are async, the odd ones run in a thread. Attempts up to `fails` raise.

    `also` is done in the middle of it, and must be async where the step is.
    """

    def effect(state: dict[str, Any]) -> None:
        begin(index)
        change(state, index)  # a failing attempt has changed its state as well: that must be dropped
        if current_run().attempt <= fails:
            raise OSError(f"{name_of(index)} does not feel like it")

    async def in_loop(state: dict[str, Any]) -> None:
        effect(state)
        await (asyncio.sleep(work) if also is None else also())

    def in_thread(state: dict[str, Any]) -> None:
        effect(state)
        _ = time.sleep(work) if also is None else also()

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
    also: dict[int, Callable[[], Any]] | None = None,
) -> Pipeline[Any]:
    """A straight pipeline of such steps; `fails` and `also` are for the steps named by their place."""
    retry = RetryPolicy(attempts=1000, first_delay=0.0005, factor=1.0, jitter=0.0)
    failing, doing = fails or {}, also or {}
    made = [
        make_step(index, work, retry if index in failing else None, failing.get(index, 0), doing.get(index))
        for index in range(steps)
    ]
    return Pipeline(name, made, policy=policy)
