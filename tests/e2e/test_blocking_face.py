"""The blocking face ends as cleanly as it began."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast import Pipeline
from holdfast.blocking import Runtime
from holdfast.blocking.face import Loop
from holdfast.errors import StoreUnavailableError, UsageError


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


def test_a_thread_that_waits_while_the_runtime_is_closed_is_told_so() -> None:
    loop, begun, told = Loop(), threading.Event(), list[str]()

    async def never() -> None:
        begun.set()
        await asyncio.Event().wait()

    def waits() -> None:
        try:
            loop.wait(never())
        except UsageError as error:
            told.append(str(error))

    thread = threading.Thread(target=waits)
    thread.start()
    assert begun.wait(10)
    loop.close()
    thread.join(10)
    assert not thread.is_alive()
    assert "was closed while this waited" in told[0]
    with pytest.raises(UsageError, match="is not open"):
        loop.wait(never())
