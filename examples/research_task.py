"""A research task in five steps that survives being killed.

    python examples/research_task.py              # start it; press Ctrl-C or kill it at any time
    python examples/research_task.py              # the same command goes on where it stopped

One function is called with the number of the step and the state, until all five are done. A
checkpoint is saved after every step; `interval=` would save only every so many seconds.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import holdfast
from holdfast import Event, Pipeline
from holdfast.errors import RunInterruptedError

SECONDS_PER_STEP = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5


def search_web(state: dict[str, Any]) -> dict[str, Any]:
    """What a search for the topic finds."""
    return {**state, "found": [f"{state['topic']}: source {number}" for number in (1, 2, 3)]}


def analyze_results(state: dict[str, Any]) -> dict[str, Any]:
    """What the sources say."""
    return {**state, "facts": [source.upper() for source in state["found"]]}


def generate_summary(state: dict[str, Any]) -> dict[str, Any]:
    """The facts in one sentence."""
    return {**state, "summary": f"{len(state['facts'])} sources on {state['topic']}"}


def research(number: int, state: dict[str, Any]) -> dict[str, Any]:
    """One step of the task."""
    print(f"step {number}", flush=True)
    time.sleep(SECONDS_PER_STEP)  # stands for the work of a model or a tool
    match number:
        case 0:
            return search_web(state)
        case 1:
            return analyze_results(state)
        case 2:
            return generate_summary(state)
        case _:
            return {**state, "reviewed": state.get("reviewed", 0) + 1}


task = Pipeline("research-task", research, total=5)


def show(event: Event) -> None:
    """Say where the run goes on after a restart."""
    if event.type == "resumed":
        print("going on after the last finished step", flush=True)


def main() -> None:
    where = {"store": sys.argv[1]} if len(sys.argv) > 1 else {}  # .holdfast/runs.db unless another is named
    try:
        result = holdfast.run(task, {"topic": "tides"}, id="research-1", on_event=show, **where)
    except RunInterruptedError:
        print("stopped after the step under way; the same command goes on")
    else:
        print(f"{result['summary']}, reviewed {result['reviewed']} times")


if __name__ == "__main__":
    main()
