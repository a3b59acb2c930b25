"""A run that streams what it writes, and a reader that reconnects.

    python examples/streaming.py                  # in one terminal: writes; kill -9 it at any time and run it again
    python examples/streaming.py read             # then in another: reads, and reconnects after every eighth event

Each paragraph is a journaled call whose words are emitted as they come. Kill the writer in the middle of a paragraph
and run it again: finished paragraphs are not written again, and the one that was cut off comes out with other words.
The reader is told which chunks that supersedes, takes them back, and ends with exactly the words of the result; it
missed nothing and saw nothing twice. The run lives in .holdfast/runs.db, or where $HOLDFAST_STORE says.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

import holdfast
from holdfast import Event, Runtime, call, emit, flow, progress
from holdfast.errors import RunInterruptedError

SECONDS_PER_WORD = float(os.environ.get("SECONDS_PER_WORD", "0.05"))
WORDS = ("tide", "moon", "sea", "shore", "wind", "wave", "salt", "sand")


async def write_paragraph(number: int) -> list[str]:
    """Stands for a model: it never says the same twice."""
    words = []
    for _ in range(10):
        await asyncio.sleep(SECONDS_PER_WORD)
        words.append(random.choice(WORDS))
        await emit("word", words[-1])
    print(f"doing: paragraph {number} is written", flush=True)
    return words


@flow
async def essay(paragraphs: int) -> str:
    """Paragraph after paragraph; each is durable before the next one begins."""
    words: list[str] = []
    for number in range(1, paragraphs + 1):
        words += await call(write_paragraph, number)
        progress(number / paragraphs, f"{number} of {paragraphs}")
    return " ".join(words)


async def read() -> None:
    """Follow the run in connections that break off again and again."""
    seen: dict[int, str] = {}
    last: Event | None = None
    ended = False
    while not ended:
        async with Runtime() as rt:  # connected anew
            count = 0
            async for event in rt.events("essay-1", after=last or 0, follow=True):
                last, count = event, count + 1
                ended = event.type == "completed"
                take_in(event, seen)
                if count == 8:
                    break
    print(f"read: {' '.join(seen.values())}")


def take_in(event: Event, seen: dict[int, str]) -> None:
    """What an event means for a reader."""
    if event.type == "emitted" and event.data["name"] == "word" and event.seq is not None:
        seen[event.seq] = event.data["data"]
        print(f"{event.seq:4} {event.data['data']}", flush=True)
    elif event.type == "emitted" and event.data["name"] == "progress":
        print(f"{event.seq:4} progress: {event.data['data']['text']}", flush=True)
    elif event.type == "superseded":
        for seq in event.data["seqs"]:
            seen.pop(seq, None)
        print(f"{event.seq:4} {len(event.data['seqs'])} chunks of an unfinished attempt taken back", flush=True)


def main() -> None:
    if sys.argv[1:] == ["read"]:
        asyncio.run(read())
        return
    try:
        print(f"result: {holdfast.run(essay, 4, id='essay-1')}")
    except RunInterruptedError:
        print("stopped; the same command goes on")


if __name__ == "__main__":
    main()
