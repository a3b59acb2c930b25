"""Real processes that start in milliseconds: forked from one that has everything imported already.

`WarmPopen` is a `subprocess.Popen` for `-m holdfast ...` and for scripts that use Holdfast. Such a process has a
pid, streams, a folder and an environment of its own, can be killed, and waits for its threads as it ends; it
saves the imports, and taking the interpreter down. What is about the start of the interpreter (its options, the
encodings that the environment asks for, what is imported when) needs `subprocess.Popen` itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn


def run(*arguments: Any, check: bool = True, **settings: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)` does."""
    stdin, settings["stdin"] = settings.pop("input", ""), subprocess.PIPE
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    with WarmPopen(arguments, text=True, **streams) as process:
        output = process.communicate(stdin)
    done = subprocess.CompletedProcess(arguments, process.returncode, *output)
    if check and done.returncode:
        raise AssertionError(f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


class WarmPopen(subprocess.Popen[str]):
    """A process with what would follow `python` as its arguments: a script or `-m` and a module, and what they get."""

    _told: socket.socket

    def _execute_child(  # the order is that of the standard library, 3.11 and later
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        *more: Any,
    ) -> None:
        pipes = more[:6]  # to stdin, from stdout, from stderr: the end to read and the end to write
        streams = [given if given != -1 else usual for usual, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = [[str(one) for one in args], str(cwd or os.getcwd()), dict(os.environ if env is None else env)]
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as asked:  # a file, because arguments may be long
            asked.write(json.dumps(request).encode())
            asked.seek(0)
            socket.send_fds(_nursery(), [b"start"], [asked.fileno(), theirs.fileno(), *streams])
        self.pid = int(self._told.recv(64))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """What waitpid would say: that is told to the parent alone, which passes it on."""
        try:
            status = self._told.recv(64, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._told.close()
        return self.pid, int(status)

    def _internal_poll(self, _deadstate: Any = None) -> int | None:  # type: ignore[override]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


@cache
def _nursery() -> socket.socket:
    """Where this process asks for others; what they are forked from is started when first asked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# What follows runs in the process that is forked from.


def _import_everything() -> None:
    import holdfast

    usual = set(vars(holdfast))
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in vars(holdfast).keys() - usual:  # so that a script that forgets an import still fails
        delattr(holdfast, name)


Request = tuple[list[str], str, dict[str, str]]


class _Parent:
    """Forks a process for each that is asked for, and tells who asked its pid and how it has ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._tellers = control, dict[int, socket.socket]()
        self._awake, self._waking = socket.socketpair()
        self._waking.setblocking(False)
        self._ready = select.poll()  # `select` itself takes no descriptor above 1023
        self._ready.register(control, select.POLLIN)
        self._ready.register(self._awake, select.POLLIN)
        signal.set_wakeup_fd(self._waking.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> Request:
        """Returns in the processes that are asked for, with what they are to be. Raises SystemExit at the end."""
        while True:
            ready = {descriptor for descriptor, _ in self._ready.poll()}
            if self._awake.fileno() in ready:
                self._awake.recv(4096)
                self._bury()
            if self._control.fileno() in ready:
                asked, told, *streams = self._next()
                child = os.fork()
                if child == 0:
                    os.close(told)
                    self._let_go()
                    return _arrive(asked, streams)
                self._tellers[child] = socket.socket(fileno=told)
                self._tell(child, child)
                for descriptor in (asked, *streams):
                    os.close(descriptor)

    def _next(self) -> list[int]:
        _, descriptors, _, _ = socket.recv_fds(self._control, 16, 5)
        if not descriptors:
            sys.exit()  # whoever asks has ended
        return descriptors

    def _let_go(self) -> None:
        """In the child: what the parent has open is none of its business."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._control, self._awake, self._waking, *self._tellers.values()):
            end.close()

    def _bury(self) -> None:
        while self._tellers:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                break
            self._tell(child, status)
            self._tellers.pop(child).close()

    def _tell(self, child: int, what: int) -> None:
        with suppress(BrokenPipeError):  # nobody wants to know
            self._tellers[child].send(str(what).encode())


def _arrive(asked: int, streams: list[int]) -> Request:
    """Take the streams over; what this process is to be."""
    for stream, descriptor in enumerate(streams):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    with open(asked, "rb") as request:
        argv, folder, environment = json.load(request)
    return argv, folder, environment


def _become(argv: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be what `python` with these arguments is."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False, buffering=1 if os.isatty(1) else -1)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1, errors="backslashreplace")
    if argv[0] == "-m":
        sys.argv, sys.path[0] = argv[1:], folder
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = argv, os.path.dirname(os.path.abspath(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")


def _end(error: BaseException | None) -> NoReturn:
    """End as an interpreter does, but leave it to the system to free what there is."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else error.code is not None
        if not isinstance(error.code, int | None):
            print(error.code, file=sys.stderr)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # joins the threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _import_everything()
    gc.collect()
    gc.freeze()
    asked_for = _Parent(socket.socket(fileno=int(sys.argv[1]))).serve()
    failure: BaseException | None = None
    try:
        _become(*asked_for)
    except BaseException as error:
        failure = error
    _end(failure)
