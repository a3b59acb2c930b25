"""What `import holdfast` brings with it, and a first run on SQLite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ONLY_WHEN_USED = [
    *("psycopg", "redis", "click", "rich", "jsonschema", "pydantic", "attrs", "multiprocessing", "sqlite3", "zoneinfo"),
]
FIRST_RUN = """
import asyncio, sys, holdfast

async def step(index, state):
    return state + index

async def main():
    async with holdfast.Runtime(sys.argv[1]) as rt:
        assert await rt.run(holdfast.Pipeline("first", step, total=3), 0) == 3

if len(sys.argv) > 1:
    asyncio.run(main())
print(*sys.modules)
"""


@pytest.mark.parametrize("store", [None, "sqlite:runs.db", "file:runs"])
def test_nothing_is_imported_that_is_not_used(tmp_path: Path, store: str | None) -> None:
    command = [sys.executable, "-c", FIRST_RUN, *([store] if store else [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    imported = set(done.stdout.split())
    assert "holdfast" in imported
    assert sorted(imported & set(ONLY_WHEN_USED)) == []
