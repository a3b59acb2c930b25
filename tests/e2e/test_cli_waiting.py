"""`holdfast asks`, `answer` and `send`, and runs that wait, each command a process of its own."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest

WAITS = """
from dataclasses import dataclass
from typing import Literal

from holdfast import ask, call, emit, flow, progress, receive, sleep, spawn


@dataclass
class Order:
    id: int = 7
    note: str = ""
    question: str = "Ship it?"


def price(order):
    with open("ledger", "a") as ledger:
        ledger.write("price\\n")
    return 12


@flow
async def approval(order: Order):
    cost = await call(price, order)
    ok = await ask(order.question, data=order, schema=bool)
    return {"cost": cost, "ok": ok}


@flow
async def choice():
    return await ask("Which?", schema=Literal["1", "2"], timeout=3600)


@flow
async def free():
    return await ask("Say something")


@flow
async def listener():
    return await receive("news")


@flow
async def two():
    import asyncio
    first = asyncio.ensure_future(ask("First?", schema=int, key="first"))
    return [await ask("Second?", schema=int, key="second"), await first]


@flow
async def nap():
    await sleep(3600)


@flow
async def boss():
    return await spawn(approval, Order(), id="kid")


@flow
async def dull():
    return 1
"""


@pytest.fixture
def waits(cli: Any) -> Any:
    (cli.folder / "waits.py").write_text(WAITS)
    return cli


def suggested(text: str) -> list[list[str]]:
    """The arguments of every command that is named."""
    return [shlex.split(found)[1:] for found in re.findall(r"`(holdfast [^`]*)`", text)]


def one_line(done: Any, code: int) -> str:
    """The one line of an error."""
    assert done.returncode == code, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: ")
    return str(line)


@pytest.mark.parametrize("store", [(), ("--store", "file:my runs")])
def test_a_run_that_asks_is_answered_by_another_process_and_finished_by_a_third(
    waits: Any, store: tuple[str, ...]
) -> None:
    asked = waits("run", "waits.py:approval", "-i", "{}", "--id", "r1", *store)
    assert (asked.returncode, asked.stdout) == (4, "")
    line = asked.stderr.splitlines()[-1]
    assert line.startswith("holdfast: run r1 waits for an answer to 'Ship it?' (true or false): ")
    answer, again = suggested(line)
    (waits.folder / "waits.py").rename(waits.folder / "away.py")  # who answers need not have the program
    done = waits(*[{"VALUE": "true"}.get(word, word) for word in answer])
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"r1 has its answer \(ask [0-9a-f]+\): true\n", done.stdout)
    (waits.folder / "away.py").rename(waits.folder / "waits.py")
    finished = waits(*again)
    assert (finished.returncode, json.loads(finished.stdout)) == (0, {"cost": 12, "ok": True})
    assert waits.ledger == ["price"]


def test_typing_it_again_or_resuming_it_before_the_answer_says_the_same(waits: Any) -> None:
    asked = waits("run", "waits.py:approval", "-i", "{}", "--id", "r1").stderr.splitlines()[-1]
    assert one_line(waits("run", "waits.py:approval", "--id", "r1"), 4) == asked
    assert one_line(waits("resume", "r1", "--app", "waits.py"), 4) == asked


def test_resume_goes_on_when_the_answer_has_come(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    (again,) = suggested(waits("answer", "r1", "false").stderr)
    assert again == ["resume", "r1", "--app", "FILE"]
    done = waits("resume", "r1", "--app", "waits.py")
    assert json.loads(done.stdout) == {"cost": 12, "ok": False}


def test_json_says_what_a_run_waits_for_and_what_to_type(waits: Any) -> None:
    done = waits("run", "waits.py:approval", "-i", "{}", "--id", "r1", "--json")
    assert done.returncode == 4
    found = json.loads(done.stdout)
    (wait,) = found["waits"]
    assert (wait["run"], wait["wait"], wait["question"]) == ("r1", "ask", "Ship it?")
    assert wait["schema"] == {"type": "boolean"}
    assert wait["command"] == "holdfast answer r1 VALUE"
    assert (found["error"]["kind"], found["error"]["exit_code"]) == ("RunWaitingError", 4)
    assert waits.json("show", "r1")["waits"] == found["waits"]


def test_a_long_question_is_cut_with_a_mark_on_a_line_and_nowhere_else(waits: Any) -> None:
    question = "Ship it? " * 20
    typed = ("run", "waits.py:approval", "-i", json.dumps({"question": question}), "--id", "r1")
    line = waits(*typed).stderr.splitlines()[-1]
    assert f"to '{question[:99]}…' (true or false)" in line
    assert f"to '{question}' (true or false)" in waits("show", "r1").stdout
    found = waits.json(*typed)
    assert f"to '{question}' (true or false)" in found["error"]["message"]
    assert found["waits"][0]["question"] == question


def test_asks_shows_what_is_open_without_the_program(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", '{"note": "x"}', "--id", "r1")
    waits("run", "waits.py:choice", "--id", "r2")
    (waits.folder / "waits.py").unlink()
    text = waits("asks").stdout
    first, second = text.split("\n\n")
    assert "question   Which?\n" in first
    assert 'takes      "1" or "2"\n' in first
    assert re.search(r"^until      \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$", first, flags=re.MULTILINE)
    assert "run        r1 (approval)\n" in second
    assert (
        'data       {"$": "object", "type": "Order", "v": {"id": 7, "note": "x", "question": "Ship it?"}}\n' in second
    )
    assert "takes      true or false\n" in second
    assert second.endswith("answer     holdfast answer r1 VALUE\n")
    assert "until" not in second
    assert waits("asks", "r2").stdout == first + "\n"
    lines = [json.loads(line) for line in waits("asks", "--json").stdout.splitlines()]
    assert [line["run"] for line in lines] == ["r2", "r1"]
    assert set(lines[0]) >= {"id", "run", "flow", "question", "data", "schema", "asked_at", "expires_at"}


def test_a_question_whose_run_has_not_taken_its_answer_in_says_that_something_has_come(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    assert "unread" not in waits("asks").stdout
    waits("answer", "r1", "true")
    assert "unread     something has come for the run" in waits("asks").stdout
    assert waits.json("asks", "r1")["unread"] is True
    waits("run", "waits.py:approval", "--id", "r1")
    assert waits("asks").stderr == "no open questions\n"


def test_asks_says_so_when_nothing_is_open(waits: Any) -> None:
    waits("run", "waits.py:dull", "--id", "r1")
    assert waits("asks").stderr == "no open questions\n"
    assert waits("asks", "r1").stderr == "r1 asks nothing\n"
    assert waits("asks", "--json").stdout == ""
    assert "no run nope" in one_line(waits("asks", "nope"), 6)


def test_an_answer_that_does_not_fit_is_refused_with_what_is_wanted(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    line = one_line(waits("answer", "r1", "maybe"), 6)
    assert line.endswith("answer: 'maybe' is not of type 'boolean'. The question takes true or false")
    assert waits.json("answer", "r1", "5")["error"]["kind"] == "AnswerError"
    assert waits("answer", "r1", "true").returncode == 0


def test_of_two_answers_the_second_is_told_so_before_and_after_the_first_was_taken_in(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    ask = waits.json("answer", "r1", "true")["ask"]
    assert "has been answered" in one_line(waits("answer", "r1", "false"), 6)
    waits("run", "waits.py:approval", "--id", "r1")
    assert "has been answered" in one_line(waits("answer", "r1", "false", "--ask", ask), 6)
    assert waits.json("show", "r1")["result"]["ok"] is True


@pytest.mark.parametrize(("flow", "says"), [("listener", "no question open"), ("dull", "it is completed")])
def test_an_answer_to_nothing_is_refused(waits: Any, flow: str, says: str) -> None:
    waits("run", f"waits.py:{flow}", "--id", "r1")
    assert says in one_line(waits("answer", "r1", "true"), 6)
    assert "no run nope" in one_line(waits("answer", "nope", "true"), 6)
    assert "not a valid run id" in one_line(waits("answer", "../x", "true"), 2)


def test_several_open_questions_are_told_apart_by_their_ids(waits: Any) -> None:
    asked = waits("run", "waits.py:two", "--id", "r1")
    *answers, again = suggested(asked.stderr)
    assert [answer[:3] for answer in answers] == [["answer", "r1", "VALUE"]] * 2
    line = one_line(waits("answer", "r1", "5"), 6)
    assert sorted(suggested(line)[:2]) == sorted(answers)
    assert suggested(line)[2] == ["asks", "r1"]
    assert "no open question 'zzz'" in one_line(waits("answer", "r1", "5", "--ask", "zzz"), 6)
    for number, answer in enumerate(answers):
        assert waits(*[{"VALUE": str(number)}.get(word, word) for word in answer]).returncode == 0
    assert sorted(json.loads(waits(*again).stdout)) == [0, 1]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["42"], 42),
        (["-5"], -5),
        (["-1.5e3"], -1500.0),
        (["yes, please"], "yes, please"),
        (['{"a": [1, null]}'], {"a": [1, None]}),
        (['"42"'], "42"),
        (["{not json"], "{not json"),
        ([""], ""),
        (["--", "-n"], "-n"),
        (["--", "--json"], "--json"),
        (["@file"], "@file"),
        (["gr\u00fc\u00df dich \u4e2d"], "gr\u00fc\u00df dich \u4e2d"),
    ],
)
@pytest.mark.parametrize("plain", [{}, {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}])
def test_a_value_is_json_else_a_text(waits: Any, typed: list[str], meant: Any, plain: dict[str, str]) -> None:
    waits("run", "waits.py:free", "--id", "r1")
    done = waits("answer", "r1", *typed, **plain)
    assert done.returncode == 0, done
    assert waits.json("run", "waits.py:free", "--id", "r1")["result"] == meant


def test_a_value_may_come_from_stdin(waits: Any) -> None:
    waits("run", "waits.py:free", "--id", "r1")
    assert waits("answer", "r1", "-", stdin="two\nlines\n").returncode == 0
    assert waits.json("run", "waits.py:free", "--id", "r1")["result"] == "two\nlines"


def test_what_fits_only_as_a_text_is_taken_as_the_text(waits: Any) -> None:
    waits("run", "waits.py:choice", "--id", "r1")
    assert "3 is not one of" in one_line(waits("answer", "r1", "3"), 6)
    assert waits.json("answer", "r1", "2")["value"] == "2"
    assert waits.json("run", "waits.py:choice", "--id", "r1")["result"] == "2"


@pytest.mark.parametrize("wrong", ["-n", "--jsno", "--ask-me"])
def test_a_mistyped_option_does_not_become_the_answer(waits: Any, wrong: str) -> None:
    waits("run", "waits.py:free", "--id", "r1")
    assert f"No such option: {wrong}" in one_line(waits("answer", "r1", wrong), 2)
    assert one_line(waits("answer", "r1"), 2)


def test_messages_are_received_in_order_whenever_they_were_sent(waits: Any) -> None:
    asked = waits("run", "waits.py:listener", "--id", "r1")
    assert asked.returncode == 4
    send, again = suggested(asked.stderr)
    assert send == ["send", "r1", "news", "VALUE"]
    assert waits("send", "r1", "other", "1").returncode == 0
    assert waits("send", "r1", "news").stdout == "r1 has a message on 'news': null\n"
    assert waits.json("send", "r1", "news", "-5")["value"] == -5
    assert json.loads(waits(*again).stdout) is None
    assert "cannot send to run r1" in one_line(waits("send", "r1", "news", "1"), 6)
    assert "no run nope" in one_line(waits("send", "nope", "news"), 6)
    assert "a topic is" in one_line(waits("send", "r1", "x" * 300), 2)


def test_a_run_that_sleeps_says_until_when(waits: Any) -> None:
    line = one_line_after_start(waits("run", "waits.py:nap", "--id", "r1"), 4)
    assert re.search(r"waits for its time, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. When it has come, `holdfast run", line)


def test_a_question_with_a_time_to_answer_says_until_when(waits: Any) -> None:
    line = one_line_after_start(waits("run", "waits.py:choice", "--id", "r1"), 4)
    assert re.search(r"""an answer to 'Which\?' \("1" or "2", until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\): `""", line)


def one_line_after_start(done: Any, code: int) -> str:
    """The line behind the one that says that the run was started."""
    assert done.returncode == code, done
    started, line = done.stderr.splitlines()
    assert started.endswith("started")
    return str(line)


def test_a_parent_names_what_its_child_waits_for_and_goes_on_with_it(waits: Any) -> None:
    asked = waits("run", "waits.py:boss", "--id", "r1")
    assert "an answer for child run kid to 'Ship it?'" in asked.stderr
    answer, again = suggested(asked.stderr)
    assert answer == ["answer", "kid", "VALUE"]
    waits("answer", "kid", "true")
    done = waits(*again)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"cost": 12, "ok": True})


def test_ls_and_show_say_what_a_run_waits_for_and_show_what_to_type(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    fields = waits("ls").stdout.rstrip("\n").split("\t")
    assert fields[:2] == ["r1", "waiting"]
    assert fields[4].startswith("an answer to 'Ship it?' (ask ")
    text = waits("show", "r1").stdout
    assert "waits for  an answer to 'Ship it?' (true or false)\nanswer     holdfast answer r1 VALUE\n" in text
    assert "\tcall\tprice\t" in text
    waits("answer", "r1", "true")
    waits("run", "waits.py:approval", "--id", "r1")
    assert "waits for" not in waits("show", "r1").stdout


def test_a_waiting_run_is_paused_answered_and_resumed_or_cancelled_for_good(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    assert waits("pause", "r1").stdout == "r1 is paused\n"
    assert waits("run", "waits.py:approval", "--id", "r1").returncode == 3
    assert "it is paused" in waits("answer", "r1", "true").stderr
    assert waits("resume", "r1", "--app", "waits.py").returncode == 0
    waits("run", "waits.py:boss", "--id", "r2")
    assert waits("cancel", "r2").stdout == "r2 is cancelled\n"
    assert waits.json("show", "kid")["run"]["status"] == "cancelled"
    assert "it is cancelled" in one_line(waits("answer", "kid", "true"), 6)


@pytest.mark.parametrize("command", [("asks",), ("answer", "r1", "true"), ("send", "r1", "x"), ("ledger", "r1")])
def test_talking_to_a_store_that_is_not_there_does_not_create_it(waits: Any, command: tuple[str, ...]) -> None:
    before = set(waits.folder.iterdir())
    assert "no store" in one_line(waits(*command), 7)
    assert set(waits.folder.iterdir()) == before


def test_what_a_question_says_cannot_command_the_terminal(waits: Any) -> None:
    evil = "\x1b]52;c;ZXZpbA==\x07 \u202egnp.exe \x9b31m\nholdfast: all is well"
    asked = waits("run", "waits.py:approval", "-i", json.dumps({"question": evil, "note": evil}), "--id", "r1")
    everything = asked.stdout + asked.stderr
    for command in (("asks",), ("asks", "--json"), ("show", "r1"), ("ls",), ("answer", "r1", evil)):
        done = waits(*command)
        everything += done.stdout + done.stderr
    assert "\\x1b]52" in everything
    assert not set("\x1b\x07\u202e\x9b") & set(everything)
    assert "\nholdfast: all is well" not in everything
    assert suggested(asked.stderr)[0] == ["answer", "r1", "VALUE"]


@pytest.mark.parametrize("command", [("asks",), ("ledger", "r1"), ("show", "r1")])
def test_a_reader_that_stops_reading_is_no_error_to_talk_about(waits: Any, command: tuple[str, ...]) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    done = waits.unread(*command)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_damaged_run_does_not_hide_the_questions_of_others(waits: Any) -> None:
    waits("run", "waits.py:approval", "-i", "{}", "--id", "r1")
    waits("run", "waits.py:choice", "--id", "r2")
    store = Path(waits.folder, ".holdfast", "runs.db")
    with sqlite3.connect(store) as connection:
        n = connection.execute("select n from runs where id = 'r1'").fetchone()[0]
        connection.execute(f"update entries set body = replace(body, 'Ship', 'Shop') where id >> 32 = {n}")
    connection.close()
    assert [json.loads(line)["run"] for line in waits("asks", "--json").stdout.splitlines()] == ["r2"]
    assert "damaged" in one_line(waits("answer", "r1", "true"), 7)
    assert "damaged" in one_line(waits("asks", "r1"), 7)
    assert waits("doctor").returncode == 7
