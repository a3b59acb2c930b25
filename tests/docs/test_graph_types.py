"""A graph of a user is clean under mypy --strict, and its result has the declared type."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from dataclasses import dataclass

import holdfast
from holdfast import End, Goto, Graph, Pipeline, RetryPolicy

@dataclass
class Ticket:
    text: str = ""

desk = Graph("desk", state=Ticket)
untyped = Graph("untyped", max_steps=5)

def undo(ticket: Ticket, error: Exception) -> Goto:
    return Goto(close, ticket)

@desk.node(start=True, retry=RetryPolicy(attempts=2), compensate=undo, goto=["close"])
async def read(ticket: Ticket) -> Ticket | Goto:
    return ticket

@desk.node
def close(ticket: Ticket) -> End[str]:
    return End(ticket.text)

def each(word: str) -> int:
    return len(word)

def keep(ticket: Ticket, results: list[int]) -> None:
    ticket.text = str(results)

inner = desk.node(Pipeline("inner", [close], state=Ticket), timeout=5)
lengths = desk.map("lengths", over=lambda ticket: ticket.text.split(), node=each, reduce=keep)
desk.edge(read, lengths)
desk.branch(lengths, lambda ticket: bool(ticket.text), {True: inner, False: "close"})
reveal_type(read)
reveal_type(close(Ticket()))
reveal_type(holdfast.run(desk, {"text": "a b"}))
reveal_type(holdfast.run(untyped, {}))
reveal_type(desk.mermaid())
"""
REVEALED = ["def", "End", "Ticket", "Any", "str"]


def test_a_graph_of_a_user_is_clean_under_strict_mypy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=", program]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert "error" not in done.stdout + done.stderr, done.stdout
    assert re.findall(r'Revealed type is "(?:[\w.]*\.)?(\w+)', done.stdout) == REVEALED
