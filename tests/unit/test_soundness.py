"""Entries of calls, waits and messages that were written wrong are found, and sound ones are not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.checksum import seal
from holdfast.core.codec import dumps
from holdfast.core.history import Signal
from holdfast.core.soundness import Soundness
from holdfast.model import Entry, Kind

PLACE = {"key": "0/fetch:1", "name": "fetch", "args": None, "of": 1}
WAIT = {"key": "0/receive:1", "name": "receive", "args": None, "of": 1}
SOUND: list[tuple[Kind, dict[str, Any]]] = [
    (Kind.INTENT, {**PLACE, "on_doubt": "fail"}),
    (Kind.CALL, {**PLACE, "result": None}),
    (Kind.CALL, {**PLACE, "error": {"text": "no"}}),
    (Kind.CALL, {**PLACE, "abandoned": True}),
    (Kind.WAIT, {**WAIT, "wait": "receive", "topic": "t", "until": None}),
    (Kind.WAIT, {**WAIT, "wait": "ask", "ask": "a", "question": "?", "until": None}),
    (Kind.WAIT, {**WAIT, "wait": "sleep", "until": 5}),
    (Kind.WAIT, {**WAIT, "wait": "child", "run": "c"}),
    (Kind.SIGNAL, {"topic": "t", "data": None}),
    (Kind.EMITTED, {"name": "n", "data": None, "path": "0/"}),
    (Kind.SUPERSEDED, {"seqs": [2, 3]}),
    (Kind.WAITING, {"for": "a message", "until": None}),
    (Kind.CALLS_UNASKED, {"keys": ["0/x:1"], "count": 1}),
    (Kind.INTERRUPTED, {}),
]


def entry(kind: Kind, body: dict[str, Any], seq: int = 9) -> Entry:
    return seal("r1", seq, kind, 1, 0.0, b"null", dumps(body))


def problem(kind: Kind, body: dict[str, Any], *before: Entry, pending: tuple[Signal, ...] = ()) -> str | None:
    soundness = Soundness("r1")
    for one in before:
        assert soundness.problem(one, (), whole=True) is None
    return soundness.problem(entry(kind, body), pending, whole=True)


@pytest.mark.parametrize(("kind", "body"), SOUND)
def test_a_sound_entry_has_no_problem(kind: Kind, body: dict[str, Any]) -> None:
    assert problem(kind, body) is None


def lacking() -> list[tuple[Kind, dict[str, Any], str]]:
    """Every sound entry with each thing that it must say."""
    optional = {"args", "until", "on_doubt", "count"}
    beginnings = (Kind.INTENT, Kind.WAIT)  # which checkpoint is told by the entry that ends them
    pairs = [(kind, body, name) for kind, body in SOUND for name in body if name not in optional]
    return [(kind, body, name) for kind, body, name in pairs if not (name == "of" and kind in beginnings)]


@pytest.mark.parametrize(("kind", "body", "without"), lacking())
def test_an_entry_that_lacks_what_it_must_say_is_damaged(kind: Kind, body: dict[str, Any], without: str) -> None:
    assert problem(kind, {name: value for name, value in body.items() if name != without}) is not None


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.CALL, {**PLACE, "key": 5, "result": None}),
        (Kind.CALL, {**PLACE, "error": "no"}),
        (Kind.CALL, {**PLACE, "of": 9, "result": None}),
        (Kind.WAIT, {**WAIT, "wait": "for ever"}),
        (Kind.WAIT, {**WAIT, "wait": "sleep", "until": None}),
        (Kind.SUPERSEDED, {"seqs": [10]}),
        (Kind.SUPERSEDED, {"seqs": ["2"]}),
        (Kind.CHECKPOINT, {"journal": "nonsense"}),
        (Kind.CHECKPOINT, {"journal": [["call", 3, {"name": "fetch", "result": 1}]]}),
    ],
)
def test_what_cannot_be_is_damage(kind: Kind, body: dict[str, Any]) -> None:
    assert problem(kind, body) is not None


WAITS = entry(Kind.WAIT, {**WAIT, "wait": "receive", "topic": "t", "until": None}, seq=3)
RECEIVED = {**WAIT, "topic": "t", "signal": 4, "result": 1}


def test_a_message_is_received_once_and_by_a_wait_that_was_begun() -> None:
    message = (Signal(4, "t", 1),)
    assert problem(Kind.RECEIVED, RECEIVED, WAITS, pending=message) is None
    assert "message 4" in (problem(Kind.RECEIVED, RECEIVED, WAITS) or "")
    assert "never begun" in (problem(Kind.RECEIVED, RECEIVED, pending=message) or "")


def test_a_wait_that_a_checkpoint_repeats_was_begun_and_one_before_it_was_not() -> None:
    body = {**WAIT, "wait": "receive", "topic": "t", "until": None}
    repeats = entry(Kind.CHECKPOINT, {"journal": [["wait", 3, body]]}, seq=5)
    forgets = entry(Kind.CHECKPOINT, {}, seq=5)
    message = (Signal(4, "t", 1),)
    assert problem(Kind.RECEIVED, RECEIVED, repeats, pending=message) is None
    assert problem(Kind.RECEIVED, RECEIVED, WAITS, forgets, pending=message) is not None


def test_behind_damage_nothing_is_missed_that_may_be_in_the_damaged_part() -> None:
    assert Soundness("r1").problem(entry(Kind.RECEIVED, RECEIVED), (), whole=False) is None
