"""The pipeline that `holdfast demo` runs: a small research report, from notes that come with it.

Every step writes a line into a ledger outside of the store before it does anything, so that how
often it really ran can be counted. When the environment says so, the process kills itself with
SIGKILL inside a step, or right after the commit of one.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field

from holdfast import faults
from holdfast.context import current_run
from holdfast.flows.base import step
from holdfast.flows.pipeline import Pipeline

LEDGER = "HOLDFAST_DEMO_LEDGER"
DIE_INSIDE = "HOLDFAST_DEMO_DIE_INSIDE"
DIE_AFTER = "HOLDFAST_DEMO_DIE_AFTER"

_NOTES = (
    "The Moon raises two bulges of water, and the Earth turns under them: two high tides a day.",
    "The Sun adds to the tide of the Moon at new and full moon; these are the spring tides.",
    "At the quarters of the Moon the Sun works against it, and the tides are small: neap tides.",
    "The shape of a bay can raise a tide of one metre to one of fifteen, as in the Bay of Fundy.",
    "A sailor reads the height of the tide from a table; the table is made from years of records.",
    "Kelp holds fast to the rock with a grip that outlasts the storm.",
)


@dataclass
class Research:
    """What is known so far."""

    topic: str
    questions: list[str] = field(default_factory=list)
    findings: dict[str, list[str]] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    report: str = ""
    approved: bool = False


@step
def plan(state: Research) -> Research:
    _enter("plan")
    state.questions = [f"What do the {name} do to the {state.topic}?" for name in ("Moon", "Sun", "shape of a bay")]
    return _leave("plan", state)


@step
def search(state: Research) -> Research:
    _enter("search")
    for question in state.questions:
        wanted = set(_words(question))
        state.findings[question] = [note for note in _NOTES if len(wanted & set(_words(note))) >= 2]
    return _leave("search", state)


@step
def analyze(state: Research) -> Research:
    _enter("analyze")
    notes = {note for found in state.findings.values() for note in found}
    counted = Counter(word for note in sorted(notes) for word in _words(note) if len(word) > 3)
    state.terms = dict(counted.most_common(5))
    return _leave("analyze", state)


@step
def write(state: Research) -> Research:
    _enter("write")
    parts = [f"{question}\n" + "\n".join(f"  {note}" for note in notes) for question, notes in state.findings.items()]
    state.report = f"About {state.topic} ({', '.join(state.terms)})\n\n" + "\n".join(parts)
    return _leave("write", state)


@step
def review(state: Research) -> Research:
    _enter("review")
    state.approved = all(question in state.report for question in state.questions)
    return _leave("review", state)


research = Pipeline("research", [plan, search, analyze, write, review], state=Research)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _enter(name: str) -> None:
    ledger = os.environ.get(LEDGER)
    if ledger:
        with open(ledger, "a", encoding="utf-8") as file:
            file.write(f"{name} {os.getpid()} {current_run().idempotency_key}\n")
    if os.environ.get(DIE_INSIDE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


def _leave(name: str, state: Research) -> Research:
    if os.environ.get(DIE_AFTER) == name:
        faults.install(_die_after_commit)
    return state


def _die_after_commit(point: str) -> None:
    # A heartbeat commits too, from a thread of its own: it is not the step's commit.
    if point == "commit.after" and "heartbeat" not in threading.current_thread().name:
        os.kill(os.getpid(), signal.SIGKILL)
