"""A run that asks a person and needs no process while it waits.

    python examples/approval.py                   # writes a draft, asks, and exits
    holdfast asks                                 # the open questions, tomorrow, from anywhere
    python examples/approval.py yes               # or: holdfast answer notice-1 true
    python examples/approval.py                   # goes on and publishes; with `yes` it does so at once

Kill it at any time and run it again. The draft is written once, the question is asked once, and of two answers the
first counts. The run lives in .holdfast/runs.db, or where $HOLDFAST_STORE says.
"""

from __future__ import annotations

import os
import sys
import time

import holdfast
from holdfast import blocking, flow
from holdfast.errors import HoldfastError, RunInterruptedError, RunWaitingError

SECONDS_PER_CALL = float(os.environ.get("SECONDS_PER_CALL", "0.5"))


def write_draft(topic: str) -> str:
    """Takes a while and costs money: it is not to be done twice."""
    print("doing: writing a draft", flush=True)
    time.sleep(SECONDS_PER_CALL)
    return f"All about {topic}."


def publish(text: str) -> str:
    """Where it can be read."""
    print("doing: publishing", flush=True)
    time.sleep(SECONDS_PER_CALL)
    return f"https://example.org/{len(text)}"


@flow
def notice(topic: str) -> str:
    """A def body: its verbs are those of holdfast.blocking."""
    draft = blocking.call(write_draft, topic)
    if not blocking.ask(f"May this be published? {draft!r}", schema=bool):
        return "thrown away"
    return f"published at {blocking.call(publish, draft)}"


def answer(approved: bool) -> None:
    """What `holdfast answer notice-1 true` does."""
    with blocking.Runtime() as rt:
        try:
            rt.answer("notice-1", approved)
        except HoldfastError as error:
            print(error)


def main() -> None:
    if len(sys.argv) > 1:
        answer(sys.argv[1] == "yes")
    try:
        print(f"result: {holdfast.run(notice, 'tides', id='notice-1')}")
    except RunWaitingError as waiting:
        print(f"waiting for {waiting.waiting_for}")
    except RunInterruptedError:
        print("stopped; the same command goes on")


if __name__ == "__main__":
    main()
