"""The servers that tests start: nothing is left of them, however a test run ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from servers.guard import Guard

SHARED = """
from pathlib import Path
from servers.postgres import shared_server
sharing = shared_server(Path(sys.argv[1]))
server = sharing.__enter__()
pid = int((server.data / "postmaster.pid").read_text().split()[0])
"""
OWN = """
from servers.redis import RedisServer
server = RedisServer()
pid = server._process.pid
"""
WORKER = """
import os, sys
{server}
print(server.folder, pid, flush=True)
for line in sys.stdin:
    if line == "ask\\n":
        with server.connect() as admin:
            print(admin.execute("select 7").fetchone()[0], flush=True)
os._exit(1)  # as a worker of pytest does whose test hangs
"""


class Worker:
    """A process that uses a server."""

    def __init__(self, server: str, folder: Path) -> None:
        code = WORKER.format(server=server)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        where, pid = self.said().split()
        self.folder, self.pid = Path(where), int(pid)

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("ask\n")
        self.process.stdin.flush()
        return self.said()

    def die(self) -> None:
        self.process.communicate()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # not on Linux, or just now
        return Path("/proc").exists() is False


def test_a_server_ends_with_its_folder_when_the_last_worker_that_uses_it_is_killed(tmp_path: Path) -> None:
    first, second = Worker(SHARED, tmp_path), Worker(SHARED, tmp_path)
    assert (second.folder, second.pid) == (first.folder, first.pid)
    first.die()
    assert second.ask() == "7\n"
    second.die()
    until(lambda: not first.folder.exists() and not is_alive(first.pid))
    assert Guard.join(first.folder) is None  # whoever comes now starts another


def test_a_server_ends_with_its_folder_when_the_process_that_has_it_for_itself_is_killed(tmp_path: Path) -> None:
    worker = Worker(OWN, tmp_path)
    assert is_alive(worker.pid)
    worker.die()
    until(lambda: not worker.folder.exists() and not is_alive(worker.pid))
