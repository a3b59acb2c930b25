"""Holdfast: a durable runtime for AI agents.

    from holdfast import Pipeline, Runtime

    async with Runtime("sqlite:runs.db") as rt:
        await rt.run(report, {"topic": "tides"}, id="r1")

After a crash the same call goes on from the last finished step.
"""

from holdfast.blocking import run
from holdfast.context import RunContext, current_run
from holdfast.core.policy import CheckpointPolicy, RunLimit
from holdfast.core.retry import RetryPolicy
from holdfast.emitting import emit, progress
from holdfast.errors import HoldfastError
from holdfast.flows.agent import Agent, Phase
from holdfast.flows.base import Step, step
from holdfast.flows.function import Again, FunctionFlow, flow
from holdfast.flows.graph import Graph
from holdfast.flows.moves import End, Goto, Handover, Terminate
from holdfast.flows.pipeline import Pipeline
from holdfast.flows.team import Strategy, Team
from holdfast.flows.tools import Tool, tool
from holdfast.handles import RunHandle
from holdfast.inside import Child, ask, call, receive, sleep, spawn
from holdfast.model import Ask, Checkpoint, Event, Health, Run, RunStatus, Worker
from holdfast.runtime import Runtime

__version__ = "0.1.0"

__all__ = [
    "Again",
    "Agent",
    "Ask",
    "Checkpoint",
    "CheckpointPolicy",
    "Child",
    "End",
    "Event",
    "FunctionFlow",
    "Goto",
    "Graph",
    "Handover",
    "Health",
    "HoldfastError",
    "Phase",
    "Pipeline",
    "RetryPolicy",
    "Run",
    "RunContext",
    "RunHandle",
    "RunLimit",
    "RunStatus",
    "Runtime",
    "Step",
    "Strategy",
    "Team",
    "Terminate",
    "Tool",
    "Worker",
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
    "tool",
]
