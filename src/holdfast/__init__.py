"""Holdfast: a durable runtime for AI agents.

    from holdfast import Pipeline, Runtime

    async with Runtime("sqlite:runs.db") as rt:
        await rt.run(report, {"topic": "tides"}, id="r1")

After a crash the same call goes on from the last finished step.
"""

from holdfast.blocking import run
from holdfast.context import RunContext, current_run
from holdfast.core.policy import CheckpointPolicy
from holdfast.core.retry import RetryPolicy
from holdfast.errors import HoldfastError
from holdfast.flows.base import End, Step, step
from holdfast.flows.function import Again, FunctionFlow, flow
from holdfast.flows.pipeline import Pipeline
from holdfast.inside import Child, ask, call, emit, progress, receive, sleep, spawn
from holdfast.model import Ask, Checkpoint, Event, Run, RunStatus
from holdfast.runtime import RunHandle, Runtime

__version__ = "0.1.0"

__all__ = [
    "Again",
    "Ask",
    "Checkpoint",
    "CheckpointPolicy",
    "Child",
    "End",
    "Event",
    "FunctionFlow",
    "HoldfastError",
    "Pipeline",
    "RetryPolicy",
    "Run",
    "RunContext",
    "RunHandle",
    "RunStatus",
    "Runtime",
    "Step",
    "ask",
    "call",
    "current_run",
    "emit",
    "flow",
    "progress",
    "receive",
    "run",
    "sleep",
    "spawn",
    "step",
]
