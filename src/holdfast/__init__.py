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
from holdfast.flows.pipeline import Pipeline
from holdfast.model import Checkpoint, Event, Run, RunStatus
from holdfast.runtime import RunHandle, Runtime

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "CheckpointPolicy",
    "End",
    "Event",
    "HoldfastError",
    "Pipeline",
    "RetryPolicy",
    "Run",
    "RunContext",
    "RunHandle",
    "RunStatus",
    "Runtime",
    "Step",
    "current_run",
    "run",
    "step",
]
