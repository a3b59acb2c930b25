"""Bad input: one line, a documented exit code, no traceback, nothing a terminal would obey."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import holdfast
from holdfast.cli.codes import MEANING, table
from holdfast.cli.waiting import Wait
from holdfast.model import Ask, Call, Checkpoint, Event, Run, Worker
from servers.postgres import PostgresServer

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
CTRL_C = """
import os, signal, sys

# As in a terminal: whoever runs the tests in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

class CtrlC:
    def find_spec(self, name, *rest):
        if name == os.environ["LOADING"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
"""
READING = [("ls",), ("show", "r1"), ("pause", "r1"), ("cancel", "r1"), ("doctor",), ("fork", "r1@1")]


def failed(done: Any, code: int) -> str:
    """The one line that it says."""
    assert done.returncode == code, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: ")
    return str(line)


@pytest.mark.parametrize("command", READING)
def test_looking_at_a_store_that_is_not_there_does_not_create_it(cli: Any, command: tuple[str, ...]) -> None:
    before = set(cli.folder.iterdir())
    assert "no store" in failed(cli(*command), 7)
    assert "no store" in failed(cli(*command, "--store", "sqlite:other.db"), 7)
    assert "no store" in failed(cli(*command, "--store", "file:folder"), 7)
    assert set(cli.folder.iterdir()) == before


def test_a_store_without_a_name_is_told_how_one_of_its_kind_is_written(cli: Any) -> None:
    assert "Write file:runs or" in failed(cli("ls", HOLDFAST_STORE="file:"), 2)
    assert "Write sqlite:runs.db or" in failed(cli("ls", HOLDFAST_STORE="sqlite:"), 2)


def test_a_directory_as_the_database_is_refused(cli: Any) -> None:
    assert "not a plain file" in failed(cli("ls", "--store", "."), 7)


def test_a_missing_parent_folder_is_named(cli: Any) -> None:
    assert "nowhere does not exist" in failed(cli("run", "app.py:oracle", "--store", "nowhere/x.db"), 7)


def test_a_file_that_is_no_database_is_damage(cli: Any) -> None:
    (cli.folder / "x.db").write_text("not a database, and long enough to look like one " * 50)
    assert "x.db" in failed(cli("ls", "--store", "x.db"), 7)


@pytest.mark.parametrize("run", ["-rf", "--db=/x", "../../etc/passwd", "a b", "", "x" * 300, "a\u202eb", "a@0", "a@b"])
def test_an_id_outside_the_allowed_form_is_refused_before_anything_is_read(cli: Any, run: str) -> None:
    line = failed(cli("show", "--", run), 2)
    assert "\u202e" not in line


def test_an_id_that_looks_like_an_option_is_one_line_too(cli: Any) -> None:
    failed(cli("show", "-rf"), 2)
    failed(cli("show"), 2)
    assert "no-such-command" in failed(cli("no-such-command"), 2)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@host/db",
        "postgresql://user:hun/hunter2@host/db",
        "postgresql://user:h@hunter2@host/db",
        "redis://:hunter2@host",
        "other://host/db?user=x&password=hunter2",
        "user:hunter2@host",
    ],
)
def test_a_password_in_the_url_is_never_printed(cli: Any, url: str) -> None:
    for done in (cli("ls", "--store", url), cli("run", "app.py:oracle", "--json", HOLDFAST_STORE=url)):
        assert done.returncode in (2, 7)
        assert "hunter2" not in done.stdout + done.stderr


def test_what_the_driver_of_a_server_logs_does_not_stand_beside_the_line(
    cli: Any, postgres: PostgresServer, postgres_schema: str
) -> None:
    assert cli("start", "app.py:oracle", "1", "--id", "r1", "--store", postgres.url(postgres_schema)).returncode == 0
    reader = f"{postgres_schema}_reader"
    with postgres.connect() as admin:
        admin.execute(f"create role {reader} login")
        admin.execute(f"grant usage on schema {postgres_schema} to {reader}")
        admin.execute(f"grant select on all tables in schema {postgres_schema} to {reader}")
        try:
            # The first of two statements that are sent at once is refused: the driver warns of the second.
            refused = cli("delete", "r1", "--store", postgres.url(postgres_schema, user=reader))
        finally:
            admin.execute(f"drop owned by {reader}")
            admin.execute(f"drop role {reader}")
    tables = f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{postgres_schema}" TO "{reader}"'
    line = failed(refused, 7)
    assert "permission denied for table" in line
    assert line.endswith(f"Let an administrator run: {tables}")


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nope.py:report", "no such file"),
        ("app.py:nope", "its flows: report, oracle"),
        ("app.py", "several flows (report, oracle)"),
        ("broken.py", "RuntimeError: on purpose (line 2)"),
        ("leaves.py", "SystemExit"),
        ("empty.py", "no flow"),
        ("no_such_module:x", "ModuleNotFoundError"),
    ],
)
def test_an_app_that_cannot_be_used_is_named_with_the_reason(cli: Any, app: str, says: str) -> None:
    (cli.folder / "broken.py").write_text("\nraise RuntimeError('on purpose')\n")
    (cli.folder / "leaves.py").write_text("raise SystemExit(0)\n")
    (cli.folder / "empty.py").write_text("")
    assert says in failed(cli("run", app), 2)
    assert not (cli.folder / ".holdfast").exists()


def test_an_app_finds_the_modules_beside_it_and_a_module_is_found_from_here(cli: Any) -> None:
    (cli.folder / "sub").mkdir()
    (cli.folder / "sub" / "beside.py").write_text("NAME = 'beside'\n")
    (cli.folder / "sub" / "two.py").write_text(
        "from beside import NAME\nfrom holdfast import Pipeline\nflow = Pipeline(NAME, [lambda s: s])\n"
    )
    assert cli("run", "sub/two.py", "--id", "a").returncode == 0
    assert cli("run", "app:oracle", "--id", "b").returncode == 0


@pytest.mark.parametrize("given", ["{bad", "@nope.json", "", "[" * 5000])
def test_input_that_is_not_json_is_refused(cli: Any, given: str) -> None:
    assert "--input" in failed(cli("run", "app.py:report", "-i", given), 2)


def test_metadata_without_a_value_is_refused(cli: Any) -> None:
    assert "--meta" in failed(cli("run", "app.py:oracle", "--meta", "x"), 2)


def test_resume_without_the_program_says_what_is_missing(cli: Any) -> None:
    cli.run_r1()
    assert "--app" in failed(cli("resume", "r1"), 2)


def test_a_program_without_the_flow_is_named_with_the_flows_it_has(cli: Any) -> None:
    cli.run_r1()
    (cli.folder / "other.py").write_text("from holdfast import Pipeline\nx = Pipeline('x', [lambda s: s])\n")
    for command in (("resume", "r1"), ("rewind", "r1@2"), ("fork", "r1@2")):
        line = failed(cli(*command, "--app", "other.py:x"), 6)
        assert "other.py has no flow of that name (it has: x)" in line
        assert "--app" not in line
    assert "--app app.py finds it" in failed(cli("rewind", "r1@2", "--app", "app.py:oracle"), 6)


def test_with_json_an_error_is_json_too(cli: Any) -> None:
    done = cli("show", "r1", "--json")
    assert done.returncode == 7
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("StoreUnavailableError", 7)


def test_a_full_disk_behind_stdout_is_one_line(cli: Any) -> None:
    cli.run_r1()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "ls"],
            cwd=cli.folder,
            env=cli.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 8
    assert done.stderr == "holdfast: the output could not be written: No space left on device\n"


@pytest.mark.parametrize("command", [("ls",), ("ls", "--json"), ("show", "r1"), ("--help",), ("doctor",)])
def test_a_reader_that_stops_reading_is_no_error_to_talk_about(cli: Any, command: tuple[str, ...]) -> None:
    cli.run_r1()
    done = cli.unread(*command)
    assert (done.returncode, done.stderr) == (141, "")


def test_without_a_locale_or_a_terminal_everything_can_be_printed(cli: Any) -> None:
    plain = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = cli(
        "run", "app.py:report", "-i", '{"topic": "Gezeiten \u00fc\u4e2d"}', "--id", "r1", "--meta", "k=\u00fc", **plain
    )
    assert done.returncode == 0, done.stderr
    for command in (("show", "r1"), ("ls", "--json"), ("doctor",)):
        assert cli(*command, **plain).returncode == 0


def test_what_a_store_says_cannot_command_the_terminal(cli: Any) -> None:
    evil = "\x1b]52;c;ZXZpbA==\x07 \u202egnp.exe \x9b31m"
    cli("run", "app.py:report", "-i", json.dumps({"topic": evil}), "--id", "r1", "--meta", f"k={evil}", FAIL_WITH=evil)
    failing = cli("run", "app.py:report", "-i", '{"topic": "x"}', "--id", "r2", FAIL_IN="search", FAIL_WITH=evil)
    everything = failing.stderr
    for command in (("show", "r1"), ("show", "r1", "--json"), ("show", "r2"), ("ls",), ("ls", "--json")):
        everything += cli(*command).stdout
    assert "\\x1b]52" in everything
    assert not set("\x1b\x07\u202e\x9b") & set(everything)


def test_a_bug_has_a_code_of_its_own_and_a_traceback_only_on_demand(monkeypatch: Any, capsys: Any) -> None:
    from holdfast.cli import app, reading

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(reading, "BlockingRuntime", broken)
    assert app.execute(["ls"]) == 70
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert app.execute(["ls"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("loading", ["holdfast", "msgspec", "holdfast.cli.app"])
def test_ctrl_c_while_the_program_is_still_being_loaded_ends_it_quietly(cli: Any, loading: str) -> None:
    (cli.folder / "sitecustomize.py").write_text(CTRL_C)
    environment = {**cli.environment, "PYTHONPATH": str(cli.folder), "LOADING": loading}
    command = [Path(sys.executable).with_name("holdfast"), "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_documented_exit_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", DOCS.read_text(), flags=re.MULTILINE)
    assert {int(code): text for code, text in rows} == {code.value: text for code, text in MEANING.items()}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("RUN", Run),
        ("WORKER", Worker),
        ("CHECKPOINT", Checkpoint),
        ("ASK", Ask),
        ("CALL", Call),
        ("WAIT", Wait),
        ("EVENT", Event),
    ],
)
def test_the_documented_shapes_are_those_of_the_code(name: str, shape: Any) -> None:
    found = re.search(rf"\b{name}: `([^`]*)`", DOCS.read_text())
    assert found is not None
    assert set(found[1].split()) == set(shape.__struct_fields__)


def test_every_command_is_documented() -> None:
    text = DOCS.read_text()
    assert [name for name in holdfast.commands if f"    holdfast {name}" not in text] == []


def test_the_help_names_every_exit_code(cli: Any) -> None:
    text = cli("--help").stdout
    assert all(line in text for line in table().splitlines())


def test_rich_is_not_loaded_for_a_plain_list(cli: Any) -> None:
    cli.run_r1()
    code = "import sys; from holdfast.cli.app import execute; execute(['ls']); sys.exit('rich' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cli.folder, env=cli.environment, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == 0
