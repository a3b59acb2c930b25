"""A program with calls, steps and flow functions is clean under mypy --strict, and wrong ones are found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GOOD = """
from dataclasses import dataclass
from functools import partial

from holdfast import Again, RetryPolicy, Runtime, blocking, call, current_run, flow, step

@dataclass
class Page:
    url: str

async def fetch(url: str, *, depth: int = 0) -> Page:
    return Page(url)

def count(page: Page) -> int:
    return len(page.url)

@step
async def search(url: str) -> Page:
    return await call(fetch, url, depth=2)

@step(timeout=5, retry=RetryPolicy(attempts=2), on_doubt="ask")
def pay(amount: int) -> str:
    return current_run().idempotency_key + str(blocking.call(count, Page("a")))

@flow
async def crawl(url: str) -> list[int]:
    reveal_type(await call(fetch, url))
    reveal_type(await call(count, Page("a")))
    reveal_type(await search(url))
    reveal_type(await search.options(key="k", timeout=3)(url))
    reveal_type(await call(search, url))
    reveal_type(await call(pay, 3))
    reveal_type(await call.options(key="k", on_doubt="fail")(count, Page("a")))
    return [1]

@flow(retry=RetryPolicy(attempts=2), timeout=60)
def work(n: int) -> str | Again:
    reveal_type(blocking.call(fetch, "a"))
    reveal_type(blocking.call.options(timeout=2)(count, Page("a")))
    reveal_type(pay(3))
    reveal_type(current_run().bind(count))
    return Again(n + 1) if n < 3 else "done"

@flow(name="other")
async def other(n: int) -> Page:
    return Page(str(n))

async def main() -> None:
    async with Runtime("memory:") as rt:
        reveal_type(await rt.run(crawl, "a"))
        reveal_type(await (await rt.start(other, 3)).result())
        reveal_type(await crawl("a"))
        reveal_type(await other(3))
        reveal_type(work(3))
        async for line in rt.ledger("r1"):
            reveal_type(line)
"""
REVEALED = [
    "Page",
    "int",
    "Page",
    "Page",
    "Page",
    "str",
    "int",
    "Page",
    "int",
    "str",
    "def (page: Page) -> int",
    "list[int]",
    "Page",
    "list[int]",
    "Page",
    "str | Again",
    "Call",
]

WRONG = """
from holdfast import call, flow, step

async def fetch(url: str) -> int:
    return 1

@step
async def search(url: str) -> int:
    return await call(fetch, 5)

@flow
async def body() -> str:
    await call(fetch, "a", 3)
    await call(fetch, link="a")
    await search(3)
    await search.options(key=5)("a")
    await call.options(on_doubt="maybe")(fetch, "a")
    return await call(fetch, "a")
"""
WRONG_LINES = [9, 13, 14, 15, 16, 17, 18]


def _mypy(tmp_path: Path, text: str) -> str:
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", program]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    return done.stdout + done.stderr


def test_a_program_with_calls_is_clean_and_its_results_have_their_types(tmp_path: Path) -> None:
    told = _mypy(tmp_path, GOOD)
    assert "error" not in told, told
    revealed = [re.sub(r"[a-z_]+\.(?=[A-Za-z_.]*)", "", text) for text in re.findall(r'type is "(.*)"', told)]
    assert revealed == REVEALED


def test_wrong_arguments_and_options_are_found(tmp_path: Path) -> None:
    told = _mypy(tmp_path, WRONG)
    lines = sorted({int(number) for number in re.findall(r"program\.py:(\d+): error", told)})
    assert lines == WRONG_LINES, told
