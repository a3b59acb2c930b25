"""The journal by itself: what is found again, what a new attempt forgets, what a checkpoint carries."""

from __future__ import annotations

from typing import Any

from holdfast.core.checksum import seal
from holdfast.core.codec import dumps
from holdfast.core.journal import Journal
from holdfast.model import Entry, Kind


def written(key: str, seq: int = 1, kind: Kind = Kind.CALL, **outcome: Any) -> tuple[str, int, dict[str, Any]]:
    return kind, seq, {"key": key, "name": "f", "args": None, "of": 1, **outcome}


def journal_of(*records: tuple[str, int, dict[str, Any]]) -> Journal:
    journal = Journal()
    for record in records:
        journal.add(*record)
    return journal


def entry(seq: int, kind: Kind, body: dict[str, Any]) -> Entry:
    return seal("r1", seq, kind, 1, 0.0, b'{"step":0,"next":"s"}', dumps(body))


# Attempts


def test_a_new_attempt_keeps_results_and_forgets_failures_and_what_was_given_up() -> None:
    journal = journal_of(
        written("0/f:1", 2, result=1),
        written("0/f:2", 3, error={}),
        written("0/f:3", 4, abandoned=True),
        written("0/f:4", 5, error={}, doubt=True, on_doubt="fail"),
        written("0/f:5", 6, Kind.INTENT, on_doubt="ask"),
        written("0/sleep:1", 7, Kind.WAIT, wait="sleep"),
    )
    journal.new_attempt()
    assert [record.key for record in journal.records] == ["0/f:1", "0/f:4", "0/f:5", "0/sleep:1"]
    doubtful = journal.find("0/f:4")
    assert doubtful is not None
    assert (doubtful.in_doubt, doubtful.ended) == (True, None)


def test_a_new_attempt_of_a_call_touches_nothing_beside_it() -> None:
    journal = journal_of(
        written("0/f:1/g:1", 2, error={}), written("0/f:1/h:1", 3, result=1), written("0/f:10/g:1", 4, error={})
    )
    journal.new_attempt("0/f:1/")
    assert [record.key for record in journal.records] == ["0/f:1/h:1", "0/f:10/g:1"]


def test_what_was_not_asked_for_is_told_but_not_what_lies_inside_a_call_that_was_found() -> None:
    journal = journal_of(
        written("0/f:1", 2, result=1),
        written("0/f:1/g:1", 3, result=1),
        written("0/f:1/t(=k)/g:1", 4, result=1),
        written("0/h:1", 5, result=1),
        written("1/f:1", 6, result=1),
    )
    assert journal.find("0/f:1") is not None
    assert journal.unasked(0) == ["0/h:1"]
    journal.finish(0)
    assert [record.key for record in journal.records] == ["1/f:1"]


def test_ten_steps_are_not_taken_for_the_first() -> None:
    journal = journal_of(written("1/f:1", 2, result=1), written("10/f:1", 3, result=1))
    journal.finish(1)
    assert [record.key for record in journal.records] == ["10/f:1"]


# Chunks


def test_equal_chunks_are_not_written_again_and_from_the_first_difference_on_the_old_ones_are_gone() -> None:
    journal = Journal()
    for seq, data in ((2, "a"), (3, "b"), (4, "c")):
        journal.add(Kind.EMITTED, seq, {"path": "0/", "name": "t", "data": data})
    assert journal.emits("0/", "t", "a") == (None, [])
    chunk, gone = journal.emits("0/", "t", "x")
    assert chunk is not None
    assert gone == [3, 4]
    assert journal.left_over(0) == []


def test_chunks_that_were_not_emitted_again_are_left_over() -> None:
    journal = Journal()
    for seq, path in ((2, "0/"), (3, "0/"), (4, "0/f:1/"), (5, "0/f:10/")):
        journal.add(Kind.EMITTED, seq, {"path": path, "name": "t", "data": "a"})
    journal.emits("0/", "t", "a")
    assert journal.left_over(0) == [3, 4, 5]
    assert journal.left_below("0/f:1/") == [4]
    journal.add(Kind.CALL, 6, written("0/f:1", 6, result=1)[2])
    assert journal.left_over(0) == [3, 5]  # what a call that is found again had emitted stays


# The log


def test_what_a_log_holds_behind_its_last_checkpoint_is_the_journal() -> None:
    log = [
        entry(1, Kind.CREATED, {"state": 0, "branch": 0}),
        entry(2, Kind.CALL, written("0/f:1", result=1)[2]),
        entry(3, Kind.CHECKPOINT, {"state": 1, "branch": 0, "journal": [["call", 2, written("1/g:1", result=5)[2]]]}),
        entry(4, Kind.CALL, written("1/f:1", error={})[2]),
        entry(5, Kind.ATTEMPT_FAILED, {"step": "s", "attempt": 1}),
        entry(6, Kind.CALL, written("1/f:2", result=2)[2]),
    ]
    journal = Journal.of("r1", log)
    assert journal is not None
    assert [record.key for record in journal.records] == ["1/g:1", "1/f:2"]
    carried = journal_of(*[(kind, seq, body) for kind, seq, body in journal.carried()])
    assert carried.records == journal.records
    assert Journal.of("r1", log[:1]) is None
