"""Parallel work, killed in the middle, of which nothing that finished is done again.

    python examples/fan_out.py                    # kill -9 it at any time and run it again

Six sources are read side by side, each by two calls one after the other; then three chapters are written by child
runs of their own. "doing" is work that is really done; "kept" is a result that is durable, done now or found from
before. Kill it and run it again: what was kept is kept again without being done, each result in its own branch, and
a chapter that was finished is not written again. `holdfast ls` shows the parent and its children.
The runs live in .holdfast/runs.db, or where $HOLDFAST_STORE says.
"""

from __future__ import annotations

import asyncio
import random
import sys

import holdfast
from holdfast import call, flow, spawn
from holdfast.errors import RunInterruptedError

SECONDS_PER_CALL = float(sys.argv[1]) if len(sys.argv) > 1 else 0.4
done: set[str] = set()
said: set[str] = set()


async def work(what: str) -> None:
    """Stands for a request to a model or a tool."""
    print(f"doing: {what}", flush=True)
    await asyncio.sleep(SECONDS_PER_CALL * random.uniform(0.5, 1.5))
    done.add(what)


def kept(what: str) -> None:
    """Say once that a result is durable, and where it came from: the body runs again after each wait for children."""
    if what not in said:
        said.add(what)
        print(f"kept: {what} ({'done now' if what in done else 'found'})", flush=True)


async def fetch(source: int) -> str:
    """The text of a source."""
    await work(f"fetch {source}")
    return f"text {source} " * source


async def count(text: str, source: int) -> int:
    """How many words there are."""
    await work(f"count {source}")
    return len(text.split())


async def write(chapter: int) -> str:
    """A chapter."""
    await work(f"write {chapter}")
    return f"chapter {chapter}"


async def words_of(source: int) -> int:
    """One branch. It is known by its first call, so it finds its own results whatever the order."""
    text = await call(fetch, source)
    kept(f"fetch {source}")
    words = await call(count, text, source)
    kept(f"count {source}")
    return words


@flow
async def chapter(number: int) -> str:
    """A child: a run of its own."""
    return await call(write, number)


@flow
async def book(sources: int) -> str:
    """The parent."""
    words = await asyncio.gather(*(words_of(source) for source in range(1, sources + 1)))
    children = [spawn(chapter, number, id=f"book-1.chapter-{number}") for number in (1, 2, 3)]
    chapters = await asyncio.gather(*children)
    for number in (1, 2, 3):
        kept(f"write {number}")
    return f"{', '.join(chapters)} from {sum(words)} words"


def main() -> None:
    try:
        print(f"result: {holdfast.run(book, 6, id='book-1')}")
    except RunInterruptedError:
        print("stopped; the same command goes on")


if __name__ == "__main__":
    main()
