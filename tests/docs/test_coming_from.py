"""The page for those who come from another system has every name that they know, and none of ours that is not there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import holdfast
from holdfast import Checkpoint, CheckpointPolicy, Graph, RetryPolicy, Run, RunHandle, RunStatus, Runtime, errors

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()

THEIRS = {
    "clawdesk-runtime": """
        Checkpoint id task_id state step created_at metadata DurableTask name status current_step total_steps
        last_checkpoint TaskStatus Pending Running Paused Completed Failed DurableExecutor new SessionStore
        checkpoint_interval execute step_fn resume RuntimeError checkpoint executor
    """,
    "longrunning": """
        Checkpoint ID Step State Timestamp Metadata CheckpointStore SaveCheckpoint LoadCheckpoint ListCheckpoints
        DeleteCheckpoint EventType EventStepStarted EventStepCompleted EventStepFailed EventCheckpointed EventPaused
        EventResumed Execution Name Progress CurrentStep TotalSteps StepNames StartTime LastUpdate EndTime Checkpoints
        Error ExecutionEvent Type ExecID ExecutionState StateInitialized StateRunning StatePaused StateResuming
        StateCompleted StateFailed StateCancelled Executor OnEvent NewExecutor AutoResumeAll CreateExecution
        CreateNamedExecution GetExecution ListExecutions LoadExecution Pause Registry Resume ResumeExecution Start
        ExecutorConfig CheckpointInterval CheckpointDir MaxRetries HeartbeatInterval AutoResume DefaultExecutorConfig
        ExecutorOption WithCheckpointStore FileCheckpointStore NewFileCheckpointStore NamedStep Func
        PersistentCheckpointStore NewPersistentCheckpointStore StepFunc StepRegistry NewStepRegistry Get Register
        TaskRecord Status Data TaskStoreAdapter SaveTask GetTask ListTasks DeleteTask UpdateProgress UpdateStatus
        TaskStoreBridge NewTaskStoreBridge
    """,
    "eggai-clutch": """
        Clutch Strategy SEQUENTIAL ROUND_ROBIN GRAPH SELECTOR CheckpointConfig storage policy run_id
        FileCheckpointStorage RedisCheckpointStorage SQLCheckpointStorage CheckpointStorage CheckpointPolicy
        every_n_steps on_agent_complete keep_latest ttl run resume resume_latest checkpoint ClutchContext ClutchState
        Terminate Handover max_turns on_request on_response on_step history stream
    """,
    "run checkpoint battery": """
        RunCheckpointMeta RunID AgentID AgentName CallerID ChannelID GuildID Prompt ModelTier ParentRunID RunCheckpoint
        Meta Messages Iteration ActivePhase UpdatedAt CheckpointStore Save Load Delete ListInterrupted New throttle now
        Checkpointer Complete Fail NewMemory Memory Message
    """,
    "simple_agents_workflow": """
        WorkflowCheckpoint run_id workflow_name step next_node_id scope_snapshot CheckpointError Io Serde
        CheckpointStore save load delete FilesystemCheckpointStore new start model tool condition router transform loop
        subgraph parallel merge first all quorum map reduce filter batch human retry-compensate cache debounce throttle
        trigger end max_steps validation Mermaid
    """,
}


def rows(section: str) -> list[tuple[str, str]]:
    """What stands in the two columns of the table of that section."""
    [text] = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| ")]
    assert all(len(line) == 2 for line in lines)
    return [(left.strip(), right.strip()) for left, right in lines[1:]]


@pytest.mark.parametrize("system", THEIRS)
def test_every_name_of_the_other_system_is_in_its_table(system: str) -> None:
    words = {word for left, _ in rows(system) for word in re.findall(r"[\w-]+", left)}
    assert set(THEIRS[system].split()) - words == set()
    assert all(right for _, right in rows(system))


def test_every_name_of_ours_exists() -> None:
    ours = " ".join(right for system in THEIRS for _, right in rows(system))
    found: dict[str, set[str]] = {
        "rt": set(re.findall(r"\brt\.(\w+)", ours)) - set(dir(Runtime)),
        "handle": set(re.findall(r"\bhandle\.(\w+)", ours)) - set(dir(RunHandle)),
        "run": set(re.findall(r"\brun\.(\w+)", ours)) - set(Run.__struct_fields__),
        "checkpoint": set(re.findall(r"\bcheckpoint\.(\w+)", ours)) - set(Checkpoint.__struct_fields__),
        "graph": set(re.findall(r"\bgraph\.(\w+)", ours)) - set(dir(Graph)),
        "status": set(re.findall(r"`(?:RunStatus\.)?([A-Z]{4,})`", ours))
        - set(RunStatus.__members__)
        - {"GRAPH", "SELECTOR"},
        "errors": set(re.findall(r"\b(\w+Error)\b", ours)) - set(dir(errors)) - {"ValueError"},
    }
    for name, kind in (("Runtime", Runtime), ("CheckpointPolicy", CheckpointPolicy), ("RetryPolicy", RetryPolicy)):
        given = {word for call in re.findall(rf"\b{name}\(([^)]*)", ours) for word in re.findall(r"(\w+)=", call)}
        found[name] = given - set(inspect.signature(kind).parameters)
    assert {name: missing for name, missing in found.items() if missing} == {}
    for verb in ("ask", "call", "progress", "current_run", "step"):
        assert hasattr(holdfast, verb)
