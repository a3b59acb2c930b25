"""Part 7: runs that wait while no process has them, and streams that are read across crashes."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.model import Kind

from .calls import standing_chunks
from .commits import PHASES
from .invariants import Witness
from .nursery import Child, Nursery, Report, result_of
from .stores import url

DAY = 86_400.0
NOW = 1_700_000_000.0


def _witness(kind: str, place: Path) -> Witness:
    (place / "store").mkdir(parents=True, exist_ok=True)
    return Witness(kind, place / "store", place / "copy", place / "ledger")


def answer_from_outside(kind: str, place: Path, nursery: Nursery, *, beside: bool) -> None:
    """One process asks and ends, another one answers, a third one finishes. Raises AssertionError."""
    witness = _witness(kind, place)
    store = url(kind, place / "store")
    asking = {"store": store, "runs": ["a"], "ledger": str(place / "ledger"), "beside": beside}
    (told,) = [report for report in nursery.run("asking", **asking) if report["what"] in ("waits", "result")]
    assert told["what"] == "waits"
    assert "Which number?" in told["waits_for"]
    before = witness.look()["a"]
    assert before.head.status == "waiting"
    assert before.head.owner is None
    assert witness.starts == beside  # what ran beside the question was finished first
    assert len(before.calls) == beside
    (won,) = [report for report in nursery.run("answering", store=store, runs=["a"], value=42) if "ask" in report]
    assert won["what"] == "won"
    assert witness.look()["a"].entries == before.entries, "who answers does not drive the run"
    result = result_of(nursery.run("asking", **asking))
    assert result == repr([*["0:made"][:beside], 42, "1:made"])
    assert witness.look()["a"].head.status == "completed"
    assert witness.starts == 1 + beside


APPROVAL = {"approved": True, "reason": "it is little"}


def approve_from_outside(kind: str, folder: Path, nursery: Nursery) -> tuple[int, int]:
    """An agent asks, another process answers, a third one finishes it: killed while it waits and while it is answered.

    Gives how many kills there were, and how often the answer of a process that was killed had come through.
    Raises AssertionError.
    """
    undisturbed = result_of(_approved(kind, folder / f"{kind}-undisturbed", nursery, None)[0])
    kills = through = 0
    for phase in PHASES:
        for number in itertools.count(1):
            reports, killed, told = _approved(kind, folder / f"{kind}-{phase}-{number}", nursery, (phase, number))
            assert result_of(reports) == undisturbed, (
                f"killed {phase} commit {number} of the answer: another transcript"
            )
            kills += 1 + killed  # the process that waited was killed as well
            through += killed and told
            if not killed:
                break
    return kills, through


def _approved(kind: str, place: Path, nursery: Nursery, die: tuple[str, int] | None) -> tuple[list[Report], bool, bool]:
    """What the process that finished it reported, whether the one that answered was killed, and had answered."""
    witness = _witness(kind, place)
    store = url(kind, place / "store")
    agent = {"store": store, "seed": 7, "ledger": str(place / "ledger")}
    waiting = nursery.start("approving", **agent, stays=die is not None)
    assert "May worker call pay" in waiting.wait_for("waits")["waits_for"]
    if die is not None:
        waiting.signal(signal.SIGKILL)
    waiting.finish()
    assert (waiting.status == -signal.SIGKILL) == (die is not None)
    before = witness.look()["a"]
    assert before.head.status == "waiting"
    begun = witness.starts
    answering = nursery.start("answering", store=store, runs=["a"], value=APPROVAL, die=die)
    answering.finish()
    killed = answering.status == -signal.SIGKILL
    again = nursery.run("answering", store=store, runs=["a"], value=APPROVAL)
    told = again[-1]["what"] != "won"  # the question was not open any more
    assert told or killed, "an answer that was given is gone"
    assert witness.look()["a"].entries == before.entries, "who answers does not drive the run"
    reports = nursery.run("approving", **agent, stays=False)
    seen = witness.look()["a"]
    assert sum(entry.kind == Kind.ANSWER for entry in seen.entries.values()) == 1
    assert max(witness.effects[run, name] for run, name in witness.effects if "/" in name) == 1, "a tool was used twice"
    assert witness.starts == begun + 2, "the tool that was allowed, and the model, are all that was left to do"
    return reports, killed, told


def race_answers(kind: str, races: int, place: Path, nurseries: tuple[Nursery, Nursery]) -> list[int]:
    """How often each of two processes was first to answer. Raises AssertionError unless one always was, and counts."""
    witness = _witness(kind, place)
    store, runs = url(kind, place / "store"), [f"run-{number:03}" for number in range(races)]
    asking = {"store": store, "runs": runs, "ledger": str(place / "ledger"), "beside": False}
    assert sum(report["what"] == "waits" for report in nurseries[0].run("asking", **asking)) == races
    racers = [
        nursery.start(
            "answering", store=store, runs=runs, value=me, me=str(place / f"of-{me}"), other=str(place / f"of-{1 - me}")
        )
        for me, nursery in enumerate(nurseries)
    ]
    told = [[report for report in racer.finish() if report["what"] in ("won", "lost")] for racer in racers]
    winners: dict[str, int] = {}
    for one, other in zip(*told, strict=True):
        assert one["run"] == other["run"]
        assert one["ask"] == other["ask"]
        assert {one["what"], other["what"]} == {"won", "lost"}, f"{one['run']}: {one['what']} and {other['what']}"
        winners[one["run"]] = int(other["what"] == "won")
    reports = nurseries[0].run("asking", **asking)
    results = {report["run"]: report["value"] for report in reports if report["what"] == "result"}
    assert results == {run: repr([winner, "1:made"]) for run, winner in winners.items()}
    for run, seen in witness.look().items():
        answers = [entry for entry in seen.entries.values() if entry.kind == Kind.ANSWER]
        assert len(answers) == 1, f"{run} has {len(answers)} answers"
    assert witness.starts == races
    return [list(winners.values()).count(me) for me in (0, 1)]


def fire_late(kind: str, place: Path, nursery: Nursery) -> None:
    """A timer that is due while nobody is alive fires at the next start, once, and not a moment early."""
    witness = _witness(kind, place)
    program = {"store": url(kind, place / "store"), "seconds": DAY, "ledger": str(place / "ledger")}
    for now in (NOW, NOW + DAY - 0.1):
        reports = nursery.run("timing", now=now, asked=True, **program)
        assert reports[-1]["what"] == "waits", f"at {now} it is said {reports[-1]}"
        assert witness.look()["a"].head.wake_at == NOW + DAY
        assert witness.starts == 1
    for now in (NOW + DAY, NOW + 3 * DAY):
        reports = nursery.run("timing", now=now, asked=False, **program)
        assert result_of(reports) == repr(["0:made", "1:made"])
        seen = witness.look()["a"]
        assert witness.starts == 2
        assert sum("/sleep" in key for key in seen.calls) == 1


class Stream:
    """What a reader saw, and what it took."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, list[int]]] = []
        self.superseded: set[int] = set()
        self.commits = self.kills = self.reconnects = 0
        self.after = 0

    def take(self, report: Report) -> None:
        """What the reader reported, which knows from now on that it has seen it."""
        if "seq" in report:
            self.after = max(self.after, report["seq"])
        if report["what"] == "chunk":
            self.chunks.append((report["seq"], report["data"]))
        elif report["what"] == "superseded":
            self.superseded.update(report["seqs"])

    @property
    def standing(self) -> list[list[int]]:
        """The chunks that the reader takes for true."""
        return [data for seq, data in self.chunks if seq not in self.superseded]


def read_across_kills(
    kind: str, place: Path, nurseries: tuple[Nursery, Nursery], *, chunks: int, changing: bool
) -> Stream:
    """A stream whose producer is killed twice and whose reader three times. Raises AssertionError."""
    witness, stream = _witness(kind, place), Stream()
    store = url(kind, place / "store")
    program = {"store": store, "seed": 1, "ledger": str(place / "ledger"), "chunks": chunks, "changing": changing}
    producer = nurseries[0].start("producing", **program)
    for report in producer.reports():  # the commits that it tells of until the run exists count as well
        stream.commits += report["what"] == "committed"
        if report["what"] == "acknowledged":
            break
    reader = nurseries[1].start("following", store=store, after=0)
    deaths: list[tuple[int, str]] = [(chunks * tenth // 10, "reader") for tenth in (2, 5, 8)]
    deaths += [(chunks // 3, "producer"), (chunks * 2 // 3, "producer")]
    for number, who in sorted(deaths):
        _read_until(reader, stream, number)
        if who == "producer":
            stream.commits += _die(producer, lambda report: None)
            stream.kills += 1
            producer = nurseries[0].start("producing", **program)
        else:
            _die(reader, stream.take)
            stream.reconnects += 1
            reader = nurseries[1].start("following", store=store, after=stream.after)
    for report in reader.finish():
        stream.take(report)
    reports = producer.finish()
    stream.commits += sum(report["what"] == "committed" for report in reports)
    assert result_of(reports) == repr(chunks)
    seqs = [seq for seq, _ in stream.chunks]
    assert seqs == sorted(set(seqs)), "the reader saw a chunk twice or out of order"
    seen = witness.look()["a"]
    assert stream.standing == [body["data"] for body in standing_chunks(seen)], "the reader saw another stream"
    assert [number for number, _ in stream.standing] == list(range(chunks)), "a gap or a duplicate"
    assert len(seen.entries) == seen.head.seq
    return stream


def _read_until(reader: Child, stream: Stream, number: int) -> None:
    """Read until the chunk of that number has been seen."""
    if any(data[0] >= number for _, data in stream.chunks):
        return
    for report in reader.reports():
        assert report["what"] != "crashed", report["trace"]
        stream.take(report)
        if report["what"] == "chunk" and report["data"][0] >= number:
            return


def _die(child: Child, take: Callable[[Any], None]) -> int:
    """Kill it; how many commits it told of. What it had still reported is taken in."""
    child.signal(signal.SIGKILL)
    rest = child.finish()
    for report in rest:
        take(report)
    return sum(report["what"] == "committed" for report in rest)
