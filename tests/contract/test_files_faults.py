"""The store in files when the disk fails, when the process dies, and when others use it at the same time."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast import faults
from holdfast.errors import StoreError, StoreUnavailableError, UsageError
from holdfast.model import Commit, Mail, Posted, Query, Refusal
from holdfast.store.files import FilesStore, disk, reader
from holdfast.store.files.view import View
from holdfast.testing.build import ALICE, BOB, commit, create, entry, owner


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[FilesStore]:
    """A store with a run of two entries."""
    store = FilesStore(tmp_path / "runs")
    await store.open()
    await store.commit([create("run"), commit("run", 2)])
    yield store
    await store.close()


@pytest.fixture
def at_fault() -> Iterator[Callable[[str, BaseException], None]]:
    """Raise an error at a fault point."""

    def install(point: str, error: BaseException) -> None:
        def hook(reached: str) -> None:
            if reached == point:
                raise error

        faults.install(hook)

    yield install
    faults.install(None)


async def seqs(store: FilesStore, run: str = "run") -> list[int]:
    return [one.seq for one in await store.read_entries(run)]


def contents(store: FilesStore) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.path.rglob("*.jsonl")}


WRITES: dict[str, Commit] = {
    "append": commit("run", 3),
    "create": create("new"),
    "rebase": commit("run", 3, rebase=entry(2)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "pwrite", "open"])
async def test_a_failing_disk_leaves_the_last_good_state_and_is_told(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch, call: str, number: int, write: Commit
) -> None:
    await seqs(store)
    before = contents(store)
    real = getattr(os, call)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if call == "open" and not args[1] & os.O_WRONLY:
            return real(*args, **kwargs)
        if call == "pwrite":
            real(args[0], bytes(args[1])[:20], args[2])  # a disk that fills up takes a part
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StoreUnavailableError) as caught:
        await store.commit([write])
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == number
    with pytest.raises(StoreUnavailableError):
        store.try_commit([write])
    monkeypatch.undo()
    assert contents(store) == before
    assert await seqs(store) == [1, 2]
    assert await store.inspect() == []
    (reply,) = await store.commit([write])
    assert reply.refused is None
    assert not list(store.path.rglob("*.tmp"))


async def test_a_failed_sync_is_not_asked_again_on_the_same_handle(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[tuple[str, int]] = []
    real_open, real_sync = os.open, os.fsync

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if path == "log.jsonl" and flags & os.O_WRONLY:
            handles.append(("open", len(handles)))
        return real_open(path, flags, *args, **kwargs)

    def sync(file: int) -> None:
        handles.append(("sync", len(handles)))
        if len(handles) == 2:
            raise OSError(errno.EIO, "I/O error")
        real_sync(file)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(StoreUnavailableError):
        await store.commit([commit("run", 3)])
    assert [what for what, _ in handles] == ["open", "sync", "open", "sync"]
    assert await seqs(store) == [1, 2]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
async def test_fault_points_stand_around_every_durable_write(store: FilesStore, write: Commit) -> None:
    seen: list[str] = []
    faults.install(seen.append)
    try:
        await store.commit([write])
    finally:
        faults.install(None)
    assert seen == ["commit.before", "commit.written", "commit.after"]


@pytest.mark.parametrize(("point", "written"), [("before", False), ("written", False), ("after", True)])
async def test_an_error_at_a_fault_point_leaves_all_or_nothing(
    store: FilesStore, at_fault: Callable[[str, BaseException], None], point: str, written: bool
) -> None:
    at_fault(f"commit.{point}", RuntimeError("injected"))
    with pytest.raises(RuntimeError, match="injected"):
        await store.commit([commit("run", 3)])
    faults.install(None)
    assert await seqs(store) == ([1, 2, 3] if written else [1, 2])
    assert await store.inspect() == []


async def test_what_was_claimed_before_the_disk_failed_is_told(
    store: FilesStore, at_fault: Callable[[str, BaseException], None]
) -> None:
    await store.commit([create("second")])
    reached: list[str] = []

    def hook(point: str) -> None:
        if point == "claim.before":
            reached.append(point)
            if len(reached) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")

    faults.install(hook)
    try:
        claims = await store.claim_runs(Query(), BOB)
    finally:
        faults.install(None)
    assert len(claims) == 1
    assert {head.id for head in await store.list_heads(Query()) if head.owner == BOB} == {claims[0].head.id}


@pytest.fixture
def trace(store: FilesStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the disk from now on, with the random part of names left out."""
    done: list[str] = []

    def named(file: int) -> str:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{file}"), store.path)
        return re.sub(r"(\.new|\.gone)-\w+", r"\1", path)

    def recorded(call: str, say: Callable[..., str]) -> None:
        real = getattr(os, call)

        def recording(*args: Any, **kwargs: Any) -> Any:
            done.append(say(*args, **kwargs))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, recording)

    recorded("pwrite", lambda file, *_: f"write {named(file)}")
    recorded("fsync", lambda file: f"sync {named(file)}")
    recorded("rename", lambda a, b, **_: re.sub(r"-\w+", "", f"rename {a} {b}"))
    return done


async def test_everything_is_synced_before_it_counts(store: FilesStore, trace: list[str]) -> None:
    async def steps(work: Coroutine[Any, Any, Any]) -> list[str]:
        trace.clear()
        await work
        return list(trace)

    log, tmp, inbox = "run/log.jsonl", "run/log.jsonl.tmp", "run/inbox.jsonl"
    assert await steps(store.commit([commit("run", 3)])) == [f"write {log}", f"sync {log}"]
    assert await steps(store.commit([commit("run", 4), commit("run", 5)])) == [f"write {log}", f"sync {log}"]
    assert await steps(store.commit([commit("run")])) == []
    made = ["write .new/log.jsonl", "sync .new/log.jsonl", "sync .new", "rename .new new", "sync ."]
    assert await steps(store.commit([create("new")])) == made
    assert await steps(store.post_mail("run", Mail("send"))) == [f"write {inbox}", f"sync {inbox}", "sync run"]
    assert await steps(store.post_mail("run", Mail("send"))) == [f"write {inbox}", f"sync {inbox}"]
    rebased = [f"write {tmp}", f"sync {tmp}", "rename log.jsonl.tmp log.jsonl", "sync run"]
    assert await steps(store.commit([commit("run", rebase=entry(2))])) == rebased
    assert await steps(store.claim_runs(Query(ids=("run",)), BOB)) == [f"write {log}", f"sync {log}"]
    assert await steps(store.delete_run("run")) == ["rename run .gone", "sync ."]


async def test_the_folder_of_a_new_store_is_synced_too(store: FilesStore, trace: list[str]) -> None:
    new = FilesStore(store.path / "below" / "deep")
    await new.open()
    assert [step for step in trace if step.startswith("sync")] == [
        "sync .",
        "sync below",
        "sync below/deep/.holdfast.json.tmp",
        "sync below/deep",
    ]
    await new.close()


async def test_what_says_the_version_is_synced_whatever_the_runs_are(store: FilesStore, trace: list[str]) -> None:
    """Torn by a power cut, it would have the whole store refused."""
    new = FilesStore(store.path / "new", durability="process")
    await new.open()
    assert [step for step in trace if step.startswith("sync")] == ["sync new/.holdfast.json.tmp", "sync new"]
    await new.close()


async def test_without_power_durability_no_run_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FilesStore(tmp_path / "runs", durability="process")
    await store.open()
    monkeypatch.setattr(os, "fsync", lambda file: pytest.fail("synced"))
    await store.commit([create("run"), commit("run", 2)])
    await store.post_mail("run", Mail("send"))
    assert await store.delete_run("run")
    await store.close()


async def test_a_closed_store_and_an_unknown_durability_are_refused(tmp_path: Path) -> None:
    store = FilesStore(tmp_path / "runs")
    with pytest.raises(StoreError, match="not open"):
        await store.read_heads(["run"])
    with pytest.raises(StoreError, match="not open"):
        store.try_commit([create("run")])
    with pytest.raises(UsageError):
        FilesStore(tmp_path, durability="none")  # type: ignore[arg-type]


async def test_a_file_or_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreUnavailableError):
            await FilesStore(path).open()


async def test_a_commit_that_would_wait_for_another_process_says_so(store: FilesStore) -> None:
    with holding(store, "run"):
        assert store.try_commit([commit("run", 3)]) is None
    assert store.try_commit([commit("run", 3), create("new")]) is None
    assert await store.read_heads(["new"]) == [None]
    replies = store.try_commit([commit("run", 3)])
    assert replies is not None
    assert replies[0].refused is None


async def test_a_process_that_stops_while_it_writes_stops_no_other_run(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "PATIENCE", 0.05)
    await store.commit([create("other")])
    with holding(store, "run"):
        with pytest.raises(StoreUnavailableError, match="lock"):
            await store.commit([commit("run", 3)])
        (reply,) = await store.commit([commit("other", 2)])
        assert reply.refused is None
    assert await seqs(store) == [1, 2]


async def test_a_run_that_is_deleted_while_a_commit_waits_for_it_is_stale(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.open(store.path / "run", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    blocked = threading.Event()
    monkeypatch.setattr(disk.time, "sleep", lambda _: blocked.set())
    waiting = asyncio.create_task(store.commit([commit("run", 3)]))
    await asyncio.to_thread(blocked.wait, 20)
    gone = store.path / ".gone-1"
    (store.path / "run").rename(gone)
    before = (gone / "log.jsonl").read_bytes()
    os.close(folder)
    (reply,) = await waiting
    assert reply.refused is Refusal.STALE
    assert (gone / "log.jsonl").read_bytes() == before


async def test_a_run_that_nobody_writes_is_listed_without_a_lock(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most runs of a store have ended, and each claim looks at all of them."""
    other = FilesStore(store.path)
    await other.open()
    await other.commit([create("second")])
    assert len(await store.list_heads(Query())) == 2
    locks: list[int] = []
    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda folder, mode: locks.append(mode) or real(folder, mode))  # type: ignore[func-returns-value]
    assert [head.seq for head in await store.list_heads(Query())] == [1, 2]
    assert [head and head.seq for head in await store.read_heads(["run", "second"])] == [2, 1]
    assert await store.claim_runs(Query(states=(("pending", False),), in_turn=True), BOB) == []
    assert locks == []
    await other.commit([commit("second", 2)])
    await other.post_mail("run", Mail("send"))
    assert [head.seq for head in await store.list_heads(Query())] == [2, 2]
    assert [head.id for head in await store.list_heads(Query(has_mail=True))] == ["run"]
    assert await other.delete_run("second")
    assert [head.id for head in await store.list_heads(Query())] == ["run"]
    assert await store.read_heads(["second"]) == [None]
    assert locks
    await other.close()


async def test_no_descriptor_is_left_open(store: FilesStore) -> None:
    await use_all(store)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await use_all(store)
    assert len(os.listdir("/proc/self/fd")) == before


async def use_all(store: FilesStore) -> None:
    """Each operation once, refused and accepted."""
    await store.commit([create("x"), create("x"), commit("x", 2), commit("x", 9), commit("missing", 1)])
    store.beat(owner(ALICE), 15.0)
    await store.post_mail("x", Mail("send"))
    (claim,) = await store.claim_runs(Query(ids=("x",)), ALICE)
    fence = claim.head.fence
    await store.commit([commit("x", 3, fence=fence, rebase=entry(2), take=tuple(mail.id for mail in claim.mail))])
    await store.read_entries("x", after=1)
    await store.list_heads(Query())
    await store.list_owners()
    await store.inspect()
    await store.wait_change(0, 0.0)
    await store.retire_owner(ALICE)
    assert await store.delete_run("x")


# Real processes

PRELUDE = """
import asyncio, os, signal, sys
from holdfast import faults
from holdfast.model import *
from holdfast.store.files import FilesStore
from holdfast.testing.build import *
root, *args = sys.argv[1:]
store = FilesStore(root)
"""


def python(store: FilesStore, code: str, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, str(store.path), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


@contextmanager
def holding(store: FilesStore, run: str) -> Iterator[None]:
    """While another process has the lock of a run."""
    code = """
import fcntl
folder = os.open(os.path.join(root, args[0]), os.O_RDONLY)
fcntl.flock(folder, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
"""
    process = python(store, code, run)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield
    process.communicate("\n")


@contextmanager
def reading(store: FilesStore, how: str) -> Iterator[Callable[[], list[int]]]:
    """While another process is in the middle of reading a run; gives how to let it go on and what it has read."""
    code = """
from holdfast.store.files import reader
real = reader.unseal
def unseal(line, before):
    reader.unseal = real
    print("reading", flush=True)
    sys.stdin.readline()
    return real(line, before)
reader.unseal = unseal
async def main():
    await store.open()
    if args[0] == "entries":
        print(*(one.seq for one in await store.read_entries("run")))
    elif args[0] == "inspect":
        print(*await store.inspect())
    else:
        print((await store.read_heads(["run"]))[0].seq)
asyncio.run(main())
"""
    process = python(store, code, how)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"

    def go_on() -> list[int]:
        said, _ = process.communicate("\n")
        assert process.returncode == 0
        return [int(seq) for seq in said.split()]

    try:
        yield go_on
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["head", "entries", "inspect"])
@pytest.mark.parametrize("write", [commit("run", 3), commit("run", 3, rebase=entry(2))], ids=["append", "rebase"])
async def test_nobody_waits_for_those_who_read(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch, how: str, write: Commit
) -> None:
    monkeypatch.setattr(disk, "PATIENCE", 0.05)
    with reading(store, how) as go_on:
        (reply,) = await store.commit([write])
        assert reply.refused is None
        assert await store.post_mail("run", Mail("send")) is Posted.ACCEPTED
        assert go_on() == {"head": [2], "entries": [1, 2], "inspect": []}[how]


async def test_a_run_that_is_deleted_while_it_is_read_is_read_to_its_end(store: FilesStore) -> None:
    with reading(store, "entries") as go_on:
        assert await store.delete_run("run")
        assert go_on() == [1, 2]


async def test_a_torn_tail_that_is_written_over_while_it_is_read_is_no_damage(store: FilesStore) -> None:
    log = store.path / "run" / "log.jsonl"
    log.write_bytes(log.read_bytes() + b'{"check":"' + b"x" * 100_000)  # more than a reader has in its buffer
    with reading(store, "entries") as go_on:
        new = entry(3, body=b'"%s"' % (b"y" * 50_000))
        (reply,) = await store.commit([commit("run", entries=(new,))])
        assert reply.refused is None
        assert go_on()[:2] == [1, 2]


async def test_damage_is_judged_with_the_lock_alone(store: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = reader.LineFile.read_new

    def read_new(file: reader.LineFile, view: View, take: Callable[[bytes, int, str], None]) -> None:
        if view.is_kept:
            raise reader.BrokenLineError(file.name, "somebody writes it at this moment")
        real(file, view, take)

    monkeypatch.setattr(reader.LineFile, "read_new", read_new)
    other = FilesStore(store.path)
    await other.open()
    assert await seqs(other) == [1, 2]
    assert await seqs(other) == [1, 2]
    await other.close()


async def test_a_killed_owner_is_dead_at_once(store: FilesStore) -> None:
    code = """
store.beat(owner(BOB), 1000.0)
asyncio.run(store.open())
asyncio.run(store.commit([create("theirs", owner=BOB)]))
print("alive", flush=True)
signal.pause()
"""
    process = python(store, code)
    assert process.stdout is not None
    assert process.stdout.readline() == "alive\n"
    assert await store.claim_runs(Query(ids=("theirs",)), ALICE) == []
    process.kill()
    process.communicate()
    (claim,) = await store.claim_runs(Query(ids=("theirs",)), ALICE)
    assert (claim.head.owner, claim.head.fence) == (ALICE, 2)


@contextmanager
def stopped(store: FilesStore, point: str) -> Iterator[None]:
    """While another process stands still in the middle of a commit to the run."""
    code = """
faults.install(lambda point: point == args[0] and os.kill(os.getpid(), signal.SIGSTOP))
asyncio.run(store.open())
store.try_commit([commit("run", 3)])
"""
    process = python(store, code, point)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("point", "seq"), [("commit.before", 2), ("commit.written", 3)])
@pytest.mark.parametrize("query", [Query(), Query(ids=("run", "other"))], ids=["all", "by id"])
async def test_one_who_stops_while_it_writes_stops_nobody_who_lists(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch, point: str, seq: int, query: Query
) -> None:
    monkeypatch.setattr(disk, "PATIENCE", 0.2)
    await store.commit([create("other")])
    with stopped(store, point):
        assert {head.id: head.seq for head in await store.list_heads(query)} == {"run": seq, "other": 1}
        with pytest.raises(StoreUnavailableError, match="lock"):  # what it has written may not be flushed yet
            await store.read_heads(["run"])
    assert [head.seq for head in await store.list_heads(Query(ids=("run",))) if head] == [seq]


async def test_a_run_that_is_half_written_is_listed_as_it_was_before(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "PATIENCE", 0.2)
    log = store.path / "run" / "log.jsonl"
    with stopped(store, "commit.written"):
        log.write_bytes(log.read_bytes()[:-20])
        assert [head.seq for head in await store.list_heads(Query())] == [2]
        log.write_bytes(b"no line of ours\n")  # who has the lock can tell what that is, and nobody else
        assert await store.list_heads(Query()) == []
        assert caplog.text == ""


async def test_a_claim_passes_over_what_is_being_written_unless_it_is_named(
    store: FilesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "PATIENCE", 0.2)
    await store.commit([create("second"), create("first")])  # in a list "run" stands between them
    with stopped(store, "commit.written"):
        assert [claim.head.id for claim in await store.claim_runs(Query(), BOB)] == ["second", "first"]
        with pytest.raises(StoreUnavailableError, match="lock"):
            await store.claim_runs(Query(ids=("run",)), BOB)
        named = await store.claim_runs(Query(ids=("run", "second")), BOB)
        assert [claim.head.id for claim in named] == ["second"]  # which it got before it had to wait
    assert {claim.head.id for claim in await store.claim_runs(Query(), BOB)} == {"run", "second", "first"}


@pytest.mark.parametrize("name", WRITES.keys())
@pytest.mark.parametrize("point", ["before", "written", "after"])
async def test_a_process_killed_while_it_commits_leaves_all_or_nothing(
    store: FilesStore, name: str, point: str
) -> None:
    code = """
faults.install(lambda point: point == f"commit.{args[1]}" and os.kill(os.getpid(), signal.SIGKILL))
writes = {"append": commit("run", 3), "create": create("new"), "rebase": commit("run", 3, rebase=entry(2))}
asyncio.run(store.open())
store.try_commit([writes[args[0]]])
"""
    process = python(store, code, name, point)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    found = await seqs(store, "new" if name == "create" else "run")
    nothing, everything = {"append": ([1, 2], [1, 2, 3]), "create": ([], [1]), "rebase": ([1, 2], [2, 3])}[name]
    assert found in (nothing, everything)
    assert found == everything or point != "after"
    assert found == nothing or point != "before"
    assert await store.inspect() == []
    (reply,) = await store.commit([commit("run", (await seqs(store))[-1] + 1)])
    assert reply.refused is None


async def test_two_processes_commit_to_one_run_without_gap_or_double(store: FilesStore) -> None:
    code = """
async def main():
    await store.open()
    done = 0
    while done < 40:
        (head,) = await store.read_heads(["run"])
        new = entry(head.seq + 1, body=b'"%s"' % args[0].encode())
        (reply,) = await store.commit([commit("run", entries=(new,))])
        done += reply.refused is None
    await store.close()
asyncio.run(main())
"""
    for process in [python(store, code, name) for name in ("first", "second")]:
        process.communicate()
        assert process.returncode == 0
    entries = await store.read_entries("run")
    assert [one.seq for one in entries] == list(range(1, 83))
    assert sorted(one.body for one in entries[2:]) == [b'"first"'] * 40 + [b'"second"'] * 40
