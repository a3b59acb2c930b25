"""What is said of events inside a step, and how they are listed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.cli.commentary import Commentary
from holdfast.cli.explaining import Typed
from holdfast.cli.happenings import Rows
from holdfast.cli.waiting import OpenWaits, told
from holdfast.model import Event


def event(kind: str, seq: int | None = 7, error: str | None = None, **data: Any) -> Event:
    return Event(type=kind, run="r1", seq=seq, time=datetime(2030, 1, 2, tzinfo=UTC), error=error, data=data)


@pytest.mark.parametrize(
    ("happened", "line"),
    [
        (event("call", name="fetch", started=1.0), "r1@7: fetch done"),
        (event("call", error="ValueError: no", name="fetch"), "r1@7: fetch failed: ValueError: no"),
        (event("call", name="fetch", abandoned=True), "r1@7: fetch given up"),
        (event("call", name="pay", abandoned=True, doubt=True), "r1@7: pay given up; whether it was done is in doubt"),
        (event("call", name="ask", timed_out=True, what="an answer"), "r1@7: an answer did not come in time"),
        (event("call", name="sleep"), "r1@7: its time has come"),
        (event("call", name="spawn", run="kid"), "r1@7: child run kid completed"),
        (event("call", error="no", name="spawn", run="kid"), "r1@7: child run kid failed: no"),
        (event("call_failed", None, "no", name="fetch"), "r1: fetch failed: no; it is tried again"),
        (event("answer", ask="a1"), "r1@7: ask a1 is answered"),
        (event("received", topic="t\x1b"), "r1@7: received a message on 't\\x1b'"),
        (event("superseded", seqs=[2, 3, 4, 5]), "r1@7: chunks 2, 3, 4 and 1 more of an earlier attempt"),
        (
            event("call_changed", key="0/a:1", name="a"),
            "r1@7: 0/a:1 was found again with other arguments; its stored result counts",
        ),
        (
            event("calls_unasked", keys=["0/a:1"], count=9),
            "r1@7: done before and not asked for again: 0/a:1 and 8 more",
        ),
        (event("emitted", None, name="token", data="\x1b[31m"), 'r1: token: "\\u001b[31m"'),
    ],
)
def test_an_event_is_one_line(happened: Event, line: str) -> None:
    assert Commentary().lines(happened) == [line]


@pytest.mark.parametrize("kind", ["intent", "signal", "waiting", "resumed", "something new"])
def test_what_is_not_worth_a_line_is_not_said(kind: str) -> None:
    assert Commentary().lines(event(kind, name="x", topic="t", data=None)) == []


def test_a_wait_is_told_unless_the_run_is_let_go_with_it() -> None:
    asks = event("wait", name="ask", wait="ask", question="Ship it?", until=None)
    commentary = Commentary()
    assert commentary.lines(asks) == []
    assert commentary.lines(event("waiting")) == []
    assert commentary.lines(asks) == []
    said = commentary.lines(event("call", name="fetch"))
    assert said == ["r1@7: waits for an answer to 'Ship it?'", "r1@7: fetch done"]


def test_what_happens_often_is_said_ever_more_rarely() -> None:
    commentary = Commentary()
    said = [line for _ in range(1000) for line in commentary.lines(event("call", name="fetch"))]
    assert said[:10] == ["r1@7: fetch done"] * 10
    assert [line.partition("(")[2].split()[0] for line in said[10:]] == ["20", "50", "100", "200", "500", "1000"]
    chunks = [line for n in range(1000) for line in commentary.lines(event("emitted", None, name="t", data=n))]
    assert chunks == ["r1: t: 0", "r1: 10 chunks of t", "r1: 100 chunks of t", "r1: 1000 chunks of t"]


def test_progress_is_said_for_every_tenth_of_the_way() -> None:
    commentary = Commentary()
    steps = [event("emitted", None, name="progress", data={"fraction": n / 100, "text": None}) for n in range(101)]
    said = [line for step in steps for line in commentary.lines(step)]
    assert (len(said), said[0], said[-1]) == (11, "r1: 0%", "r1: 100%")
    assert commentary.fraction == 1.0
    commentary.step_done()
    assert commentary.fraction is None


def test_chunks_that_follow_one_another_are_one_row() -> None:
    rows = Rows(3)
    for seq in range(1, 1001):
        rows.add(event("emitted", seq, name="token", data=seq))
    rows.add(event("call", 1001, name="fetch"))
    rows.add(event("emitted", 1002, name="token", data="x"))
    assert [(row[0], row[4]) for row in rows] == [("1-1000", "1000 chunks, last 1000"), (1001, "done"), (1002, '"x"')]


def test_a_suggested_command_keeps_a_topic_that_looks_like_an_option_from_being_one() -> None:
    opened = OpenWaits("r1")
    opened.see(event("wait", key="0/receive:1", name="receive", wait="receive", topic="-n $(x)"))
    waits = opened.waits(Typed())
    assert waits[0].command == "holdfast send -- r1 '-n $(x)' VALUE"
    opened.see(event("received", key="0/receive:1"))
    assert opened.waits(Typed()) == []


def test_more_than_a_few_waits_are_counted() -> None:
    opened = OpenWaits("r1")
    for number in range(5):
        opened.see(event("wait", key=f"0/ask:{number}", wait="ask", ask=f"a{number}", question="?", schema=None))
    line = told("r1", None, opened.waits(Typed()), "`again`", whole=True)
    assert line.count("holdfast answer r1 VALUE --ask a") == 3
    assert line.endswith("; and for 2 more. Then `again` goes on.")
