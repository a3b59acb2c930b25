"""A support desk as a graph, which can be killed anywhere and asks a person before it answers.

    python examples/support_graph.py              # kill -9 it at any time and run it again; it ends with a question
    python examples/support_graph.py yes          # or: holdfast answer ticket-1 true
    python examples/support_graph.py picture      # the graph as a Mermaid flowchart

A ticket is classified. A bug goes to three tools at once, then a reply is drafted, a person approves it, and it is
sent; praise is only thanked for. "doing" is work that is really done, "kept" is the result of a tool that is on disk.
Kill it while the tools are at work: those that were kept are not asked again.
The run lives in .holdfast/runs.db, or where $HOLDFAST_STORE says.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field

import holdfast
from holdfast import End, Event, Graph, blocking
from holdfast.errors import HoldfastError, RunInterruptedError, RunWaitingError

SECONDS = float(os.environ.get("SECONDS_PER_CALL", "0.4"))


@dataclass
class Ticket:
    """What is known of a ticket; every node leaves its part of it."""

    text: str
    kind: str = ""
    found: list[str] = field(default_factory=list)
    reply: str = ""


async def work(what: str, share: float = 1.0) -> None:
    """Stands for a request to a model or a tool."""
    print(f"doing: {what}", flush=True)
    await asyncio.sleep(SECONDS * share)


desk = Graph("support-desk", state=Ticket)


@desk.node(start=True)
async def classify(ticket: Ticket) -> None:
    await work("classify")
    ticket.kind = "bug" if "broken" in ticket.text else "praise"


async def search_manual(ticket: Ticket) -> str:
    await work("search the manual", 0.5)
    return "manual: switch it off and on"


async def look_up_order(ticket: Ticket) -> str:
    await work("look up the order", 1.0)
    return "order: bought last week"


async def read_incidents(ticket: Ticket) -> str:
    await work("read the incidents", 1.5)
    return "incidents: none today"


def keep_found(ticket: Ticket, results: list[str]) -> None:
    ticket.found = results


def approved(ticket: Ticket, yes: bool) -> Ticket | End[str]:
    return ticket if yes else End("nothing was sent")


@desk.node
async def draft(ticket: Ticket) -> None:
    await work("draft a reply")
    ticket.reply = f"We are sorry. {'; '.join(ticket.found)}."


@desk.node
async def send(ticket: Ticket) -> End[str]:
    await work("send the reply")
    return End(f"sent: {ticket.reply}")


@desk.node
async def thank(ticket: Ticket) -> End[str]:
    await work("say thank you")
    return End("sent: Thank you!")


desk.parallel("tools", [search_manual, look_up_order, read_incidents], reduce=keep_found)
desk.human("approve", lambda ticket: f"Send this? {ticket.reply}", schema=bool, reduce=approved)
desk.branch(classify, lambda ticket: ticket.kind, {"bug": "tools", "praise": thank})
desk.edge("tools", draft)
desk.edge(draft, "approve")
desk.edge("approve", send)


def say(event: Event) -> None:
    """What has come to the disk."""
    if event.type == "call":
        print(f"kept: {event.data['name']}", flush=True)


def answer(yes: bool) -> None:
    """What `holdfast answer ticket-1 true` does."""
    with blocking.Runtime() as rt:
        try:
            rt.answer("ticket-1", yes)
        except HoldfastError as error:
            print(error)


def main() -> None:
    if sys.argv[1:] == ["picture"]:
        print(desk.mermaid(), end="")
        return
    if len(sys.argv) > 1:
        answer(sys.argv[1] == "yes")
    try:
        print(f"result: {holdfast.run(desk, Ticket('it is broken'), id='ticket-1', on_event=say)}")
    except RunWaitingError as waiting:
        print(f"waiting for {waiting.waiting_for}")
    except RunInterruptedError:
        print("stopped; the same command goes on")


if __name__ == "__main__":
    main()
