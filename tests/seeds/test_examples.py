"""The examples run, can be killed, and go on when they are run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_the_research_task_goes_on_after_a_kill(tmp_path: Path, scheme: str) -> None:
    store = f"{scheme}:{tmp_path / 'runs'}"
    command = [sys.executable, str(EXAMPLES / "research_task.py"), store, "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "step 2\n":
                process.kill()
                break
    again = run("research_task.py", store, "0")
    assert again.splitlines() == [
        "going on after the last finished step",
        "step 2",
        "step 3",
        "step 4",
        "3 sources on tides, reviewed 2 times",
    ]
    assert run("research_task.py", store, "0").splitlines() == again.splitlines()[-1:]


def test_the_named_steps_pause_resume_and_end(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    lines = run("named_steps.py", store).splitlines()
    types = [line.split()[0] for line in lines]
    assert types.count("step_failed") == 2
    assert types.count("paused") == 2  # the event, and what the program says of it
    assert lines[-1] == "result: {'night': 1, 'rows': [1, 2, 3], 'published': True}"
    assert run("named_steps.py", store).splitlines() == ["0 interrupted runs taken up", lines[-1]]
