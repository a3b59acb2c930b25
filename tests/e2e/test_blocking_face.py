"""The blocking face ends as cleanly as it began."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast import Pipeline
from holdfast.blocking import Runtime
from holdfast.errors import StoreUnavailableError


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-loop"]


def test_its_loop_ends_with_it_even_when_a_list_was_not_read_to_its_end(tmp_path: Path) -> None:
    with Runtime(tmp_path / "runs.db") as runtime:
        for run in ("a", "b"):
            runtime.run(Pipeline("noop", [lambda state: state]), id=run)
        assert next(runtime.list()).id == "b"
    assert not loops()


def test_a_store_that_cannot_be_opened_leaves_no_thread_behind(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError), Runtime(tmp_path / "nowhere" / "runs.db"):
        pass
    assert not loops()
