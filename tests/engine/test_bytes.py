"""What a run writes grows with what changed, never with what it has become."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Pipeline, Runtime
from holdfast.model import Commit, Reply
from holdfast.store.sqlite import SqliteStore

WORDS = "agent plan step verify estimate compare contract clause liability revenue quarter forecast".split()  # noqa: SIM905


def message(number: int) -> dict[str, Any]:
    chosen = random.Random(number)
    text = " ".join(chosen.choice(WORDS) for _ in range(400))[:1900]
    return {"id": f"msg-{number}", "role": "user", "ts": 1760000000.0 + number, "content": text}


async def say(number: int, state: dict[str, Any]) -> None:
    state["messages"].append(message(number))


async def test_a_conversation_of_300_turns_takes_little_more_than_its_own_bytes(tmp_path: Path) -> None:
    async with Runtime(f"sqlite:{tmp_path}/runs.db", durability="process") as rt:
        state = await rt.run(Pipeline("talk", say, total=300), {"messages": []}, id="talk")
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert on_disk < 1.25 * len(json.dumps(state, separators=(",", ":")))


async def test_a_state_that_changes_wholly_is_not_written_more_than_twice(tmp_path: Path) -> None:
    async def turn(number: int, state: dict[str, Any]) -> dict[str, Any]:
        return {"all": [message(number * 10 + n) for n in range(10)]}

    async with Runtime(f"sqlite:{tmp_path}/runs.db", durability="process") as rt:
        await rt.run(Pipeline("turn", turn, total=20), {"all": []}, id="turn")
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert on_disk < 2 * 20 * len(json.dumps([message(n) for n in range(10)]))


async def test_a_large_state_is_never_written_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline: list[int] = []
    write_now = SqliteStore.try_commit

    def watched(self: SqliteStore, batch: Sequence[Commit], *how: Any) -> list[Reply] | None:
        inline.extend(len(entry.body) for commit in batch for entry in commit.entries)
        return write_now(self, batch, *how)

    async def begin(state: dict[str, Any]) -> dict[str, Any]:
        return {"blob": "x"}

    async def grow(state: dict[str, Any]) -> dict[str, Any]:
        return {"blob": "x" * 1_000_000}

    monkeypatch.setattr(SqliteStore, "try_commit", watched)
    async with Runtime(f"sqlite:{tmp_path}/runs.db") as rt:
        result = await rt.run(Pipeline("grow", [begin, grow]), {}, id="grow")
    assert len(result["blob"]) == 1_000_000
    assert 0 < max(inline) < 1_000_000
