"""A folder with a small program in it, and the command line as a real process there.

Its processes are warm ones (`warm`), but for those whose environment is about the start of an interpreter.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from warm import WarmPopen

APP = """
import os
from dataclasses import dataclass, field

from holdfast import End, Pipeline


@dataclass
class Report:
    topic: str
    done: list[str] = field(default_factory=list)


def work(name, state):
    with open("ledger", "a") as ledger:
        ledger.write(name + "\\n")
    if os.environ.get("FAIL_IN") == name:
        raise ValueError(os.environ.get("FAIL_WITH", "no luck"))
    if os.environ.get("STOP_IN") == name:
        print("in", name, flush=True)
        open("go").read()  # a pipe: until somebody has written to it
    state.done.append(name)


def search(state: Report): work("search", state)
def analyze(state: Report): work("analyze", state)
def write(state: Report): work("write", state)


def answer(state):
    return End({"answer": 42})


report = Pipeline("report", [search, analyze, write], state=Report)
oracle = Pipeline("oracle", [answer])
"""


class Cli:
    """Types commands in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._live: list[subprocess.Popen[str]] = []
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """The command as a process that is under way."""
        return self.to_stop(self._open(arguments, environment, stdin=subprocess.DEVNULL))

    def to_stop(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """The same process, which does not outlive the test."""
        self._live.append(process)
        return process

    def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """The command, done."""
        with self._open(arguments, environment, stdin=subprocess.PIPE) as process:
            output = process.communicate(stdin)
        return subprocess.CompletedProcess(arguments, process.returncode, *output)

    def _open(
        self, arguments: Sequence[str], environment: dict[str, str], stdin: int, stdout: Any = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        command = ["-m", "holdfast", *arguments]
        settings: Any = {"cwd": self.folder, "env": {**self.environment, **environment}, "text": True}
        settings |= {"stdin": stdin, "stdout": stdout, "stderr": subprocess.PIPE}
        if any(name.startswith(("PYTHON", "LANG", "LC_")) for name in environment):
            return subprocess.Popen([sys.executable, *command], **settings)
        return WarmPopen(command, **settings)

    def unread(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command, done, with a stdout that nobody reads any more."""
        reading, writing = os.pipe()
        os.close(reading)  # before it begins: what it prints is never taken
        with os.fdopen(writing, "w") as stdout:
            process = self._open(arguments, {}, stdin=subprocess.DEVNULL, stdout=stdout)
        with process:
            output = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, *output)

    def json(self, *arguments: str, **environment: str) -> Any:
        """What the command prints with --json."""
        return json.loads(self(*arguments, "--json", **environment).stdout)

    def in_terminal(self, *arguments: str, columns: int = 100) -> str:
        """What a person sees of the command, in black and white."""
        leader, follower = pty.openpty()
        environment = {**self.environment, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm"}
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": follower, "stderr": follower}
        with WarmPopen(["-m", "holdfast", *arguments], cwd=self.folder, env=environment, **streams) as process:
            assert process.wait() == 0
        os.close(follower)
        seen = b""
        with suppress(OSError):  # how a terminal ends that nobody writes to any more
            while part := os.read(leader, 65536):
                seen += part
        os.close(leader)
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode()).replace("\r\n", "\n")

    def run_r1(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """The usual run, typed once."""
        return self("run", "app.py:report", "-i", '{"topic": "tides"}', "--id", "r1", **environment)

    def start_r1(self, stop_in: str) -> subprocess.Popen[str]:
        """The usual run, under way inside that step, where it stays until `let_go`."""
        process = self.start("run", "app.py:report", "-i", '{"topic": "tides"}', "--id", "r1", STOP_IN=stop_in)
        assert process.stdout is not None
        assert process.stdout.readline() == f"in {stop_in}\n"
        return process

    def let_go(self) -> None:
        """Let the step that waits go on."""
        (self.folder / "go").write_text("go")

    def kill(self, process: subprocess.Popen[str]) -> None:
        """kill -9, and see it dead."""
        process.send_signal(signal.SIGKILL)
        process.communicate()

    @property
    def ledger(self) -> list[str]:
        """The steps that really ran."""
        return (self.folder / "ledger").read_text().split()

    def stop_all(self) -> None:
        for process in self._live:
            if process.poll() is None:
                process.kill()
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    (tmp_path / "app.py").write_text(APP)
    os.mkfifo(tmp_path / "go")
    typed = Cli(tmp_path)
    yield typed
    typed.stop_all()
