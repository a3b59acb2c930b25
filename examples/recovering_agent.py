"""An agent with tools that can be killed at any time, and that asks before it publishes.

    python examples/recovering_agent.py           # researches, writes, asks, and exits
    holdfast asks                                 # the open question, with the arguments of the call
    python examples/recovering_agent.py yes       # or: holdfast answer essay-1 true
    python examples/recovering_agent.py no        # the model is told why, and ends without publishing

"doing" is work that is really done. Kill it and run it again: no call that had finished is made again, the finished
phase is skipped, and the transcript goes on where it was. The model is a script, so that no network is needed; a
real one is a function of the same two arguments (see docs/agents.md).
The run lives in .holdfast/runs.db, or where $HOLDFAST_STORE says.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import holdfast
from holdfast import Agent, Phase, blocking, tool
from holdfast.errors import HoldfastError, RunInterruptedError, RunWaitingError
from holdfast.testing import ScriptedModel, wants

SECONDS_PER_CALL = float(os.environ.get("SECONDS_PER_CALL", "0.3"))

FACTS = {
    "moon": "The Moon raises two bulges of water.",
    "sun": "The Sun adds to the tide at new and full moon.",
}


async def doing(what: str) -> None:
    """Stands for a request that takes a while and costs money."""
    print(f"doing: {what}", flush=True)
    await asyncio.sleep(SECONDS_PER_CALL)


async def look_up(word: str) -> str:
    """Look up what is known of a word."""
    await doing(f"look up {word}")
    return FACTS[word]


async def count_words(text: str) -> int:
    """Count the words of a text."""
    await doing("count words")
    return len(text.split())


@tool(approval=True, on_doubt="ask")
async def publish(title: str, text: str) -> str:
    """Publish a text. A person is asked before, and again if it was cut off in the middle."""
    await doing(f"publish {title}")
    return f"https://example.org/{title}"


def last_word(messages: list[dict[str, Any]]) -> str:
    """What the model says in the end: it depends on what the person said."""
    answer = messages[-1]["content"]
    return f"It is at {answer}." if answer.startswith("https:") else f"It stays unpublished ({answer})."


TEXT = " ".join(FACTS.values())
words = [{"id": word, "name": "look_up", "arguments": {"word": word}} for word in FACTS]
model = ScriptedModel(
    [
        {"content": "I look both up.", "tool_calls": words},  # made at once
        "Both are known.",
        wants("count_words", text=TEXT),
        wants("publish", title="tides", text=TEXT),
        last_word,
    ]
)
essay = Agent(
    "essay",
    model,
    instructions="You write short essays.",
    phases=[
        Phase("research", instructions="Look things up.", tools=[look_up]),
        Phase("write", tools=[count_words, publish], prompt="Now write it down and publish it."),
    ],
)


def answer(approved: bool) -> None:
    """What `holdfast answer essay-1 true` does."""
    with blocking.Runtime() as rt:
        try:
            rt.answer("essay-1", {"approved": approved, "reason": "" if approved else "too short"})
        except HoldfastError as error:
            print(error)


def main() -> None:
    if len(sys.argv) > 1:
        answer(sys.argv[1] == "yes")
    try:
        result = holdfast.run(essay, "Write on the tides.", id="essay-1")
        for message in result["messages"]:
            calls = ", ".join(call["name"] for call in message.get("tool_calls", ()))
            print(f"{message['role']}: {message['content'] or ''}{f' [{calls}]' if calls else ''}")
        print(f"result: {result['output']}")
    except RunWaitingError as waiting:
        print(f"waiting for {waiting.waiting_for}")
    except RunInterruptedError:
        print("stopped; the same command goes on")


if __name__ == "__main__":
    main()
