"""The checksum of an entry: over all that it holds and over where it belongs, whatever the store gives back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.checksum import seal, verify
from holdfast.errors import StoreDamagedError

SEALED = seal("run", 3, "checkpoint", 2, 1000.5, b'{"step":1}', b'{"delta":[]}')
MOVED = {"cursor": b'{"step":1}{', "body": b'"delta":[]}'}


def test_an_entry_passes_as_it_was_sealed() -> None:
    verify("run", SEALED)
    assert len(SEALED.check) == 8


@pytest.mark.parametrize(
    "damage",
    [
        *({"seq": 4}, {"kind": "created"}, {"fence": 1}, {"at": 1000.25}, {"cursor": b'{"step":2}'}),
        *({"body": b'{"delta":[1]}'}, {"check": "00000000"}, {"check": ""}, MOVED),
        *({"seq": "3"}, {"seq": 3.0}, {"seq": 1 << 70}, {"fence": True}, {"at": "1000.5"}, {"at": None}),
        *({"body": None}, {"cursor": '{"step":1}'}),
    ],
)
def test_whatever_is_damaged_is_told_by_run_and_seq(damage: dict[str, Any]) -> None:
    with pytest.raises(StoreDamagedError, match="run"):
        verify("run", replace(SEALED, **damage))


def test_an_entry_does_not_pass_in_another_run() -> None:
    with pytest.raises(StoreDamagedError):
        verify("other", SEALED)


def test_a_time_in_whole_seconds_passes_when_the_store_gives_it_back_as_a_float() -> None:
    entry = seal("run", 1, "created", 1, 1000, b"null", b"{}")
    assert entry.check == seal("run", 1, "created", 1, 1000.0, b"null", b"{}").check
