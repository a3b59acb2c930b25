"""`holdfast doctor` on stores that somebody has tampered with."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast.blocking as blocking
from holdfast.runtime import Runtime
from servers.redis import RedisServer


@pytest.fixture
def store(cli: Any) -> Path:
    """Three runs, of which the tests damage r1."""
    for run in ("before", "r1", "after"):
        done = cli("run", "app.py:report", "-i", '{"topic": "tides"}', "--id", run)
        assert done.returncode == 0
    return Path(cli.folder, ".holdfast", "runs.db")


def tamper(store: Path, *statements: str) -> None:
    with sqlite3.connect(store) as connection:
        n = connection.execute("select n from runs where id = 'r1'").fetchone()[0]
        for statement in statements:
            connection.execute(statement.replace("SEQ", f"({n} << 32) + ").replace(":n", str(n)))
    connection.close()


def test_a_sound_store_is_sound_and_stays_as_it_is(cli: Any, store: Path) -> None:
    before = hashlib.sha256(store.read_bytes()).hexdigest()
    done = cli("doctor")
    assert (done.returncode, done.stdout) == (0, "3 runs checked: all sound\n")
    assert cli.json("doctor") == {"ok": True, "runs": 3, "problems": []}
    assert hashlib.sha256(store.read_bytes()).hexdigest() == before


TAMPERING: dict[str, tuple[str, int | None]] = {
    "update entries set body = replace(body, 'search', 'sea') where id = SEQ2": ("checksum", 2),
    "update entries set cursor = '{}' where id = SEQ2": ("checksum", 2),
    "update entries set fence = 0 where id = SEQ3": ("checksum", 3),
    "delete from entries where id = SEQ3": ("missing", 3),
    "delete from entries where id = SEQ1": ("missing", 1),
    "delete from entries where id = SEQ5": ("log does not say so", 4),
    "update runs set status = 'running' where n = :n": ("its log ends with completed", 5),
    "update runs set fence = 0 where n = :n": ("fence", 5),
    "update runs set base = 4 where n = :n": ("segment", 4),
    "update runs set info = 'nonsense' where n = :n": ("head", None),
    "update runs set metadata = '' where n = :n": ("head", None),
    "delete from entries where id between SEQ0 and SEQ99": ("no log", None),
}


@pytest.mark.parametrize("statement", TAMPERING)
def test_damage_is_named_by_run_and_seq_and_does_not_stop_the_check(cli: Any, store: Path, statement: str) -> None:
    tamper(store, statement)
    done = cli("doctor", "--json")
    assert done.returncode == 7, done
    found = json.loads(done.stdout)
    assert not found["ok"]
    assert {problem["run"] for problem in found["problems"]} == {"r1"}
    assert found["runs"] == 3
    text, seq = TAMPERING[statement]
    assert any(text in problem["problem"] and problem["seq"] == seq for problem in found["problems"]), found
    assert cli("doctor").returncode == 7


def test_two_entries_that_were_swapped_are_both_found(cli: Any, store: Path) -> None:
    tamper(
        store,
        "update entries set id = SEQ99 where id = SEQ2",
        "update entries set id = SEQ2 where id = SEQ3",
        "update entries set id = SEQ3 where id = SEQ99",
    )
    assert {2, 3} <= {problem["seq"] for problem in cli.json("doctor")["problems"]}


def test_every_damaged_entry_is_found_not_only_the_first(cli: Any, store: Path) -> None:
    tamper(store, "update entries set at = 0 where id in (SEQ2, SEQ5)")
    assert {2, 5} <= {problem["seq"] for problem in cli.json("doctor")["problems"]}


def overwrite(start: int, data: bytes) -> Callable[[Path], None]:
    def damage(store: Path) -> None:
        whole = store.read_bytes()
        store.write_bytes(whole[:start] + data + whole[start + len(data) :])

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        overwrite(0, bytes(100)),
        overwrite(4096, bytes(4096)),
        lambda store: store.write_bytes(store.read_bytes()[:5000]),
        lambda store: store.write_bytes(b""),
        lambda store: store.write_bytes(b"\x80\x04\x95"),
    ],
    ids=["header", "a page of zeros", "cut off", "empty", "not a database"],
)
def test_a_broken_file_gives_valid_json_and_the_documented_code(
    cli: Any, store: Path, damage: Callable[[Path], None]
) -> None:
    damage(store)
    done = cli("doctor", "--json")
    assert done.returncode == 7, done
    assert not json.loads(done.stdout)["ok"]
    assert "Traceback" not in done.stderr
    assert cli("ls").returncode == 7


def test_a_store_of_a_newer_version_is_refused_unchanged(cli: Any, store: Path) -> None:
    with sqlite3.connect(store) as connection:
        connection.execute("pragma user_version = 999")
    connection.close()
    before = store.read_bytes()
    done = cli("doctor", "--json")
    assert done.returncode == 7
    assert "999" in json.loads(done.stdout)["error"]["message"]
    assert store.read_bytes() == before


def test_show_of_a_damaged_run_is_valid_json_with_what_can_be_read(cli: Any, store: Path) -> None:
    tamper(store, "update entries set body = replace(body, 'analyze', 'anal') where id = SEQ3")
    done = cli("show", "r1", "--json")
    assert done.returncode == 7
    found = json.loads(done.stdout)
    assert [point["seq"] for point in found["checkpoints"]] == [1, 2]
    assert "r1@3" in found["damage"][0]
    assert cli("show", "after").returncode == 0


def test_a_damaged_run_is_not_gone_on_with_and_others_are(cli: Any, store: Path) -> None:
    tamper(store, "update entries set body = replace(body, 'search', 'sea') where id = SEQ2")
    assert cli("rewind", "r1@3", "--app", "app.py").returncode == 7
    assert cli("rewind", "after@3", "--app", "app.py").returncode == 0


def test_a_damaged_head_is_a_one_line_error_for_the_list(cli: Any, store: Path) -> None:
    tamper(store, "update runs set info = 'nonsense' where n = :n")
    done = cli("ls")
    assert done.returncode == 7
    assert done.stderr.startswith("holdfast: r1 is damaged: its head cannot be read")


async def test_both_faces_give_the_same_problems(cli: Any, store: Path) -> None:
    tamper(store, "delete from entries where id = SEQ3")
    async with Runtime(store, create=False) as runtime:
        found = [problem async for problem in runtime.doctor()]
    assert found
    assert found[0].run == "r1"


def test_the_blocking_face_gives_them_one_by_one(cli: Any, store: Path) -> None:
    tamper(store, "delete from entries where id = SEQ3")
    with blocking.Runtime(store, create=False) as runtime:
        first = next(runtime.doctor())
    assert (first.run, first.seq) == ("r1", 3)


def test_a_redis_server_that_promises_less_is_sound_and_warned_of_once(cli: Any) -> None:
    server = RedisServer("--appendfsync", "everysec")
    try:
        cli.environment["HOLDFAST_STORE"] = server.url()
        assert cli("start", "app.py:report", '{"topic": "tides"}', "--id", "r1").returncode == 0
        done = cli("doctor")
        assert (done.returncode, done.stdout) == (0, "1 run checked: all sound\n")
        (line,) = done.stderr.splitlines()
        assert "appendfsync everysec" in line
        done = cli("doctor", "--json")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"ok": True, "runs": 1, "problems": []})
        with server.client() as client:
            client.delete("holdfast:log:r1")
        assert cli("doctor").returncode == 7  # damage is damage
    finally:
        server.remove()
