"""The blocking face used where it would wait for itself, or after its end, says so instead of hanging."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Pipeline
from holdfast.blocking import Runtime
from holdfast.errors import UsageError
from holdfast.model import Event

FLOW = Pipeline("adding", [lambda state: state + 1])


def test_a_watcher_that_waits_for_the_runtime_is_told_that_it_would_wait_for_ever() -> None:
    told: list[str] = []

    def watch(event: Event) -> None:
        try:
            rt.get(event.run)
        except UsageError as error:
            told.append(str(error))

    with Runtime("memory:", on_event=watch) as rt:
        assert rt.run(FLOW, 1, id="r1") == 2
    assert told
    assert "another thread" in told[0]


@pytest.mark.parametrize(
    "use",
    [
        lambda rt, handle: handle.result(),
        lambda rt, handle: handle.cancel(),
        lambda rt, handle: next(rt.events("r1")),
        lambda rt, handle: rt.get("r1"),
    ],
)
def test_what_is_asked_of_a_closed_runtime_is_refused(use: Callable[..., Any]) -> None:
    with Runtime("memory:") as rt:
        handle = rt.start(FLOW, 1, id="r1")
        handle.result()
    with pytest.raises(UsageError, match="not open"):
        use(rt, handle)


def test_an_iterator_that_outlives_the_runtime_is_refused() -> None:
    with Runtime("memory:") as rt:
        rt.run(FLOW, 1, id="r1")
        events = rt.events("r1")
        next(events)
    with pytest.raises(UsageError, match="not open"):
        next(events)


_FORKED = """
import os, sys
from holdfast import Pipeline
from holdfast.blocking import Runtime
from holdfast.errors import UsageError

flow = Pipeline("adding", [lambda state: state + 1])
with Runtime("memory:") as rt:
    rt.run(flow, 1, id="r1")
    child = os.fork()
    if not child:
        try:
            rt.run(flow, 1, id="r1")
        except UsageError as error:
            assert "before a fork" in str(error)
            rt.close()
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert rt.run(flow, 1, id="r1") == 2
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_process_is_told_to_open_a_runtime_of_its_own() -> None:
    assert subprocess.run([sys.executable, "-c", _FORKED], timeout=60, check=False).returncode == 7
