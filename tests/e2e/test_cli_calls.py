"""Flow functions by the command line: their calls as they are told, listed, gone back to and checked."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.checksum import seal

CALLS = """
import asyncio
import os

from holdfast import Pipeline, ask, call, emit, flow, progress, receive, sleep, spawn


def note(name):
    with open("ledger", "a") as ledger:
        ledger.write(name + "\\n")
    if os.environ.get("STOP_IN") == name:
        print("in", name, flush=True)
        open("go").read()  # a pipe: until somebody has written to it
    return name


def fails():
    raise ValueError("no \\x1b[31mluck")


@flow
def plain(given=None):
    return given


@flow
def nothing():
    return "nothing was given"


@flow(name="by another name")
async def named(number: int) -> int:
    return number + 1


@flow
async def story():
    await call(note, "one")
    progress(0.5, "half way")
    try:
        await call(fails)
    except ValueError:
        pass
    for number in range(5):
        emit("token", f"w{number}")
    await sleep(0.001)
    kid = await spawn(plain, 5)
    try:
        async with asyncio.timeout(0.05):
            await call(asyncio.sleep, 3600)
    except TimeoutError:
        pass
    return kid, await receive("news"), await call(note, "two")


@flow
async def busy(calls: int):
    for number in range(calls):
        await call(plain, number)
        progress((number + 1) / calls, f"call {number + 1}")
        emit("token", number)


async def fetch(state):
    return {"got": await call(note, "fetch")}


steps = Pipeline("steps", [lambda state: {"got": None}, fetch])


@flow
async def firm():
    return await call.options(on_doubt="ask")(note, "charge")
"""


@pytest.fixture
def calls(cli: Any) -> Any:
    (cli.folder / "calls.py").write_text(CALLS)
    return cli


@pytest.mark.parametrize(
    ("flow", "given", "result"),
    [
        ("plain", ["-i", '{"a": 1}'], {"a": 1}),
        ("plain", ["-i", "-5"], -5),
        ("plain", ["-5"], -5),
        ("plain", ["-1.5e3"], -1500.0),
        ("plain", ['-i{"a": 1}'], {"a": 1}),
        ("plain", ["--input=-5"], -5),
        ("plain", ["[1, 2]"], [1, 2]),
        ("plain", [], None),
        ("nothing", [], "nothing was given"),
        ("named", ["-i", "41"], 42),
    ],
)
def test_a_function_marked_as_a_flow_is_run_with_its_input_or_none(
    calls: Any, flow: str, given: list[str], result: Any
) -> None:
    done = calls("run", f"calls.py:{flow}", *given, "--id", "r1")
    assert (done.returncode, json.loads(done.stdout)) == (0, result), done.stderr
    again = calls("run", f"calls.py:{flow}", "--id", "r1")
    assert again.stderr == "r1 was already finished; its result:\n"


@pytest.mark.parametrize(("flow", "given"), [("nothing", "5"), ("named", '"x"'), ("named", "{}")])
def test_an_input_that_the_function_does_not_take_is_one_line(calls: Any, flow: str, given: str) -> None:
    done = calls("run", f"calls.py:{flow}", "-i", given, "--id", "r1")
    assert done.returncode in (2, 6)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert calls("show", "r1").returncode in (6, 7)


def test_a_negative_number_is_put_into_a_queue_as_an_input_too(calls: Any) -> None:
    assert calls("start", "calls.py:plain", "-5", "--id", "r1", "--key", "-k").returncode == 0
    assert calls.json("show", "r1")["run"]["key"] == "-k"
    assert calls.json("resume", "r1", "--app", "calls.py")["result"] == -5


@pytest.mark.parametrize("command", ["run", "start"])
def test_a_mistyped_option_does_not_become_the_input(calls: Any, command: str) -> None:
    done = calls(command, "calls.py:plain", "--idd", "r1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option: --idd" in done.stderr


def test_an_input_that_is_given_twice_is_refused(calls: Any) -> None:
    done = calls("run", "calls.py:plain", "1", "-i", "2")
    assert (done.returncode, "given twice" in done.stderr) == (2, True)


def test_what_happens_inside_a_step_is_told_as_it_happens_and_shown_later(calls: Any) -> None:
    done = calls("run", "calls.py:story", "--id", "r1")
    assert done.returncode == 4, done
    said = [line.partition(": ")[2] for line in done.stderr.splitlines()[1:-1]]
    assert said[:4] == ["note done", "50% half way", "fails failed: ValueError: no \\x1b[31mluck", 'token: "w0"']
    assert any(line.startswith("child run r1.") and line.endswith(" completed") for line in said)
    assert "sleep given up" in said
    assert not any("news" in line for line in said)  # the last line says it
    assert "a message on 'news': `holdfast send r1 news VALUE`" in done.stderr.splitlines()[-1]
    events = calls("show", "r1").stdout.partition("last events\n")[2]
    assert "\temitted\ttoken\t" in events
    assert '\t5 chunks, last "w4"\n' in events
    assert "\tcall\tfails\t" in events
    assert "ValueError: no \\x1b[31mluck\n" in events
    assert "\twaiting\t-\t" in events


def test_progress_is_seen_in_ls_and_show(calls: Any) -> None:
    calls("run", "calls.py:story", "--id", "r1")
    run = json.loads(calls("ls", "--json").stdout.splitlines()[-1])
    assert (run["id"], run["progress"]) == ("r1", 50.0)
    assert calls("ls").stdout.splitlines()[-1].split("\t")[3] == "0 (50 %)"
    assert "steps      0 (50 %, half way)\n" in calls("show", "r1").stdout


def test_many_calls_and_chunks_are_told_in_few_lines(calls: Any) -> None:
    lines = calls("run", "calls.py:busy", "-i", "300", "--id", "r1").stderr.splitlines()
    assert len(lines) < 60
    assert any(line.endswith("plain done (200 times by now)") for line in lines)
    assert "r1: 100 chunks of token" in lines
    assert "r1: 100% call 300" in lines


def test_in_a_terminal_progress_moves_the_bar_and_is_not_a_line(calls: Any) -> None:
    seen = calls.in_terminal("run", "calls.py:busy", "-i", "30", "--id", "r1")
    assert "plain done (20 times by now)" in seen
    assert "r1: 50%" not in seen
    assert "r1 completed; its result:\nnull\n" in seen


def test_the_ledger_lists_calls_alone_and_what_became_of_each(calls: Any) -> None:
    calls("run", "calls.py:story", "--id", "r1")
    rows = [line.split("\t") for line in calls("ledger", "r1").stdout.splitlines()]
    assert [row[:2] for row in rows] == [["note", "done"], ["fails", "failed"], ["sleep", "abandoned"]]
    assert rows[1][2] == "0/fails:1"
    assert rows[1][5] == "ValueError: no \\x1b[31mluck"
    lines = [json.loads(line) for line in calls("ledger", "r1", "--json").stdout.splitlines()]
    assert set(lines[0]) == {
        *("run", "key", "name", "status", "seq", "on_doubt", "error", "started_at", "ended_at"),
    }
    calls("run", "calls.py:plain", "--id", "r2")
    assert calls("ledger", "r2").stderr == "r2 has no journaled calls\n"
    assert calls("ledger", "nope").returncode == 6


def test_a_call_that_was_cut_off_is_in_doubt_and_a_person_decides(calls: Any) -> None:
    process = calls.start("run", "calls.py:firm", "--id", "r1", STOP_IN="charge")
    assert process.stdout.readline() == "in charge\n"
    assert calls("ledger", "r1").stdout.split("\t")[:2] == ["note", "under way"]
    calls.kill(process)
    assert calls("ledger", "r1").stdout.split("\t")[:2] == ["note", "in doubt"]
    asked = calls("run", "calls.py:firm", "--id", "r1")
    assert asked.returncode == 4
    assert '{"done": true or false, "result"?: anything}' in asked.stderr
    assert calls("answer", "r1", '{"done": "yes"}').returncode == 6
    assert calls("answer", "r1", '{"done": true, "result": "charge"}').returncode == 0
    done = calls("run", "calls.py:firm", "--id", "r1")
    assert json.loads(done.stdout) == "charge"
    assert calls.ledger == ["charge"]
    assert calls("ledger", "r1").stdout.splitlines()[-1].split("\t")[:2] == ["note", "done"]


def test_a_run_goes_back_to_a_call_or_forks_at_it_and_does_the_rest_again(calls: Any) -> None:
    calls("run", "calls.py:story", "--id", "r1")
    calls("send", "r1", "news", "1")
    assert calls("run", "calls.py:story", "--id", "r1").returncode == 0
    first = next(e["seq"] for e in calls.json("show", "r1", "--last", "99")["events"] if e["type"] == "call")
    between = calls("rewind", f"r1@{first + 1}", "--app", "calls.py")
    assert (between.returncode, f"the nearest is r1@{first}." in between.stderr) == (6, True)
    done = calls("rewind", f"r1@{first}", "--app", "calls.py")
    assert f"r1 goes on from r1@{first}: next step story (0 done)" in done.stderr
    forked = calls("fork", f"r1@{first}", "--id", "r2", "--app", "calls.py")
    assert forked.returncode == 4, forked.stderr
    assert calls.json("show", "r2")["forked_from"] == f"r1@{first}"
    assert calls.json("show", f"r1@{first}")["checkpoint"]["id"] == "r1@1"
    assert calls.ledger.count("one") == 1


def test_show_of_a_call_inside_a_step_gives_the_state_that_the_step_began_with(calls: Any) -> None:
    calls("run", "calls.py:steps", "{}", "--id", "r1")
    seqs = {event["type"]: event["seq"] for event in calls.json("show", "r1")["events"]}
    assert calls.json("show", f"r1@{seqs['call']}")["checkpoint"]["state"] == {"got": None}
    assert calls("show", f"r1@{seqs['completed']}").returncode == 6
    for verb in ("rewind", "fork"):  # a step is gone back to as a whole
        assert calls(verb, f"r1@{seqs['call']}", "--app", "calls.py").returncode == 6


# Damage


def reseal(cli: Any, run: str, kind: str, change: Any) -> int:
    """Change the first entry of that kind and give it a checksum that fits; its seq."""
    store = Path(cli.folder, ".holdfast", "runs.db")
    with sqlite3.connect(store) as connection:
        n = connection.execute("select n from runs where id = ?", (run,)).fetchone()[0]
        row = connection.execute(
            "select id, fence, at, cursor, body from entries where id >> 32 = ? and kind = ? order by id", (n, kind)
        ).fetchone()
        seq = row[0] & 0xFFFFFFFF
        body = json.loads(row[4])
        change(body)
        entry = seal(run, seq, kind, row[1], row[2], _bytes(row[3]), json.dumps(body).encode())
        text = entry.body.decode() if isinstance(row[4], str) else entry.body
        connection.execute('update entries set body = ?, "check" = ? where id = ?', (text, entry.check, row[0]))
    connection.close()
    return int(seq)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("call", lambda body: body.pop("key"), "no 'key'"),
        ("call", lambda body: body.pop("result"), "how the call ended"),
        ("call", lambda body: body.update(of=99), "which checkpoint"),
        ("wait", lambda body: body.update(wait="for ever"), "no 'wait'"),
        ("received", lambda body: body.update(signal=2), "message 2"),
        ("received", lambda body: body.update(key="0/other:1"), "never begun"),
        ("emitted", lambda body: body.pop("path"), "no 'path'"),
    ],
)
def test_doctor_finds_entries_that_were_written_wrong(calls: Any, kind: str, change: Any, says: str) -> None:
    calls("run", "calls.py:story", "--id", "r1")
    calls("send", "r1", "news", "1")
    calls("run", "calls.py:story", "--id", "r1")
    assert calls("doctor").returncode == 0
    seq = reseal(calls, "r1", kind, change)
    problems = calls.json("doctor")["problems"]
    assert any(says in problem["problem"] and problem["seq"] == seq for problem in problems), problems
    for command in (("ledger", "r1"), ("show", "r1"), ("asks",)):
        assert "Traceback" not in calls(*command).stderr


@pytest.mark.parametrize(
    "statement",
    ["update runs set status = 'running'", "update runs set waiting_for = 'Godot'", "update runs set wake_at = 5"],
)
def test_doctor_finds_a_waiting_run_whose_head_says_something_else(calls: Any, statement: str) -> None:
    calls("run", "calls.py:story", "--id", "r1")
    with sqlite3.connect(Path(calls.folder, ".holdfast", "runs.db")) as connection:
        connection.execute(f"{statement} where id = 'r1'")
    connection.close()
    assert calls("doctor").returncode == 7
    assert [problem["run"] for problem in calls.json("doctor")["problems"]] == ["r1"]
