"""Real processes, started quickly, to be killed.

A nursery is a small single-threaded process that has everything imported already and forks one child
at a time, so that a child costs milliseconds instead of the start of an interpreter. A child runs one
of the programs in `victim` and reports through a pipe, line by line. The pipe outlives the child:
what it managed to report before its death can still be read.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import Any

Report = dict[str, Any]
_ANOTHER = b"another nursery"


class Child:
    """A process that runs a program of `victim`."""

    def __init__(self, pid: int, reports: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._pipe = os.fdopen(reports, "rb")
        self.status: int | None = None

    def reports(self) -> Iterator[Report]:
        """What the child reports, as it comes, until its end; can be taken up again where it was left."""
        for line in self._pipe:
            if line.endswith(b"\n"):
                yield json.loads(line)

    def wait_for(self, what: str) -> Report:
        """The next report of that kind. Raises when the child ends without one."""
        for report in self.reports():
            if report["what"] == what:
                return report
            if report["what"] == "crashed":
                raise AssertionError(f"the child crashed:\n{report['trace']}")
        raise AssertionError(f"the child ended (status {self.wait()}) without reporting {what!r}")

    def signal(self, number: int) -> None:
        """Send a signal; harmless when the child has ended, because its nursery still holds the pid."""
        if self.status is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def wait(self) -> int:
        """The exit code; negative for a signal."""
        if self.status is None:
            self.status = int(self._control.recv(64))
        return self.status

    def finish(self) -> list[Report]:
        """Everything that the child still reports, once it has ended. Raises when its program crashed."""
        rest = list(self.reports())
        self._pipe.close()
        self.wait()
        for report in rest:
            if report["what"] == "crashed":
                raise AssertionError(f"the child crashed:\n{report['trace']}")
        return rest

    def discard(self) -> None:
        """End it, whatever it does: a test that failed may have left it stopped or waiting."""
        self.signal(signal.SIGKILL)
        self.wait()
        self._pipe.close()


class Nursery:
    """Starts children, one at a time."""

    def __init__(self, like: Nursery | None = None) -> None:
        """With `like`, what that one has imported is not imported again."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._child: Child | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if like is None:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            command = [sys.executable, "-m", f"{__package__}.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        else:
            assert like._child is None, "a nursery with a child has no time for it"
            socket.send_fds(like._control, [_ANOTHER], [theirs.fileno()])
            assert like._control.recv(64) == _ANOTHER
        theirs.close()

    def start(self, program: str, **arguments: Any) -> Child:
        """A new child that runs `victim.PROGRAMS[program]` with these arguments."""
        if self._child is not None:
            self._child.discard()
        reports, theirs = os.pipe()
        socket.send_fds(self._control, [json.dumps([program, arguments]).encode()], [theirs])
        os.close(theirs)
        self._child = Child(int(self._control.recv(64)), reports, self._control)
        return self._child

    def run(self, program: str, **arguments: Any) -> list[Report]:
        """Everything that an undisturbed child reports."""
        return self.start(program, **arguments).finish()

    def close(self) -> None:
        """End the nursery, and its child if there still is one."""
        if self._child is not None:
            self._child.discard()
        self._control.close()
        if self._process is not None:
            self._process.wait()


def result_of(reports: list[Report]) -> str:
    """The result that a child reported at its end."""
    return next(report["value"] for report in reversed(reports) if report["what"] == "result")


def _serve(control: socket.socket) -> None:
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
        if not request:
            return
        if request == _ANOTHER:
            if os.fork() == 0:
                control.close()
                control = socket.socket(fileno=descriptors[0])
            else:
                os.close(descriptors[0])
                control.send(_ANOTHER)
            continue
        pid = os.fork()
        if pid == 0:
            control.close()
            os._exit(_live(request, descriptors[0]))
        os.close(descriptors[0])
        control.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        try:
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
        except BrokenPipeError:
            return


def _live(request: bytes, reports: int) -> int:
    from . import victim

    def report(what: str, **fields: Any) -> None:
        # One write, so that a kill leaves a whole line or none.
        os.write(reports, json.dumps({"what": what, **fields}).encode() + b"\n")

    program, arguments = json.loads(request)
    try:
        victim.PROGRAMS[program](report, **arguments)
    except BaseException:
        report("crashed", trace=traceback.format_exc())
        return 1
    return 0


if __name__ == "__main__":
    # Imported before the first fork, once for all children; the first is what arguments of tools are checked with.
    import jsonschema  # noqa: F401

    from . import victim  # noqa: F401

    gc.collect()
    gc.freeze()  # a child that collects its garbage copies none of these pages

    _serve(socket.socket(fileno=int(sys.argv[1])))
