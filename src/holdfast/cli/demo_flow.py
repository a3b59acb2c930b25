"""The agent that `holdfast demo` runs: it pays an invoice, with a scripted model in the place of a real one.

The model and every tool write a line into a ledger outside of the store before they do anything, so that how often
they really ran can be counted. When the environment says so, the process kills itself with SIGKILL inside a tool, or
right after the result of one was committed.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from holdfast import faults
from holdfast.context import current_run
from holdfast.flows.agent import Agent
from holdfast.flows.tools import tool

LEDGER = "HOLDFAST_DEMO_LEDGER"
DIE_INSIDE = "HOLDFAST_DEMO_DIE_INSIDE"
DIE_AFTER = "HOLDFAST_DEMO_DIE_AFTER"


async def find_invoice(number: int) -> dict[str, Any]:
    """Find an invoice by its number."""
    _enter("find_invoice")
    return {"number": number, "from": "Kelp & Sons", "amount": 120}


async def check_budget(amount: int) -> str:
    """Say whether there is money for it."""
    _enter("check_budget")
    return f"there is enough for {amount}"


@tool(approval=True, on_doubt="ask")
async def pay(invoice: int, amount: int) -> str:
    """Pay an invoice. A person is asked before."""
    _enter("pay")
    _leave("pay")
    return f"paid {amount} for invoice {invoice}"


_SCRIPT: list[Any] = [
    ("find_invoice", {"number": 7}),
    ("check_budget", {"amount": 120}),
    ("pay", {"invoice": 7, "amount": 120}),
    "Invoice 7 of Kelp & Sons is paid.",
]


async def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    """Says what the script says; it stands for a request to a provider."""
    spoken = sum(message["role"] == "assistant" for message in messages)
    _enter(f"model:{spoken + 1}")
    line = _SCRIPT[spoken]
    if isinstance(line, str):
        return line
    name, arguments = line
    return {"content": None, "tool_calls": [{"id": f"call-{spoken + 1}", "name": name, "arguments": arguments}]}


clerk = Agent("clerk", model, [find_invoice, check_budget, pay], "You pay invoices.")


def _enter(name: str) -> None:
    ledger = os.environ.get(LEDGER)
    if ledger:
        with open(ledger, "a", encoding="utf-8") as file:
            file.write(f"{name} {os.getpid()} {current_run().idempotency_key}\n")
    if os.environ.get(DIE_INSIDE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


def _leave(name: str) -> None:
    if os.environ.get(DIE_AFTER) == name:
        faults.install(_die_after_commit)


def _die_after_commit(point: str) -> None:
    # A heartbeat commits too, from a thread of its own: it is not the tool's commit.
    if point == "commit.after" and "heartbeat" not in threading.current_thread().name:
        os.kill(os.getpid(), signal.SIGKILL)
