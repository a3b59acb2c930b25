"""What the store in files does with files that were cut, changed, moved or planted."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.errors import InvalidIdError, StoreDamagedError, StoreVersionError
from holdfast.model import Commit, Entry, HeadChange, Limit, Mail, Owner, Posted, Query, Refusal
from holdfast.store.files import FilesStore
from holdfast.testing.build import ALICE, BOB, commit, create, entry, owner

TORN = "did not finish"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def log(root: Path) -> Path:
    return root / "run" / "log.jsonl"


@pytest_asyncio.fixture
async def store(root: Path) -> AsyncIterator[FilesStore]:
    """A store with a run of four lines and three entries, and another run beside it."""
    store = FilesStore(root, durability="process")
    await store.open()
    await store.commit([create("run"), create("other")])
    await store.commit([commit("run", 2, change=HeadChange(status="waiting"))])
    await store.claim_runs(Query(ids=("run",)), BOB)
    await store.commit([commit("run", 3, owner=BOB, fence=2)])
    yield store
    await store.close()


async def seqs(store: FilesStore, run: str = "run") -> list[int]:
    return [one.seq for one in await store.read_entries(run)]


async def assert_damaged(store: FilesStore, seq: int | None = None) -> None:
    """The run is refused everywhere with its name, and the other one goes on."""
    for read in (store.read_heads(["run"]), store.read_entries("run"), store.commit([commit("run", 4)])):
        with pytest.raises(StoreDamagedError) as caught:
            await read
        assert caught.value.run_id == "run"
        if seq is not None:
            assert caught.value.seq == seq
    assert [head.id for head in await store.list_heads(Query())] == ["other"]
    assert await store.claim_runs(Query(ids=("run",)), ALICE) == []
    assert [run for run, problem in await store.inspect() if TORN not in problem] == ["run"]
    assert await seqs(store, "other") == [1]


async def test_a_log_cut_anywhere_gives_its_whole_lines_or_is_refused(store: FilesStore, log: Path) -> None:
    whole, before = log.read_bytes(), await store.read_entries("run")
    ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
    entries_at_end = [1, 2, 2, 3]
    for size in range(len(whole)):
        log.write_bytes(whole[:size])
        lines = sum(end <= size for end in ends)
        if lines == 0:
            with pytest.raises(StoreDamagedError):
                await store.read_heads(["run"])
            continue
        assert await store.read_entries("run") == before[: entries_at_end[lines - 1]]
        assert [run for run, problem in await store.inspect() if TORN in problem] == ["run"] * (size not in ends)
    log.write_bytes(whole)
    assert await store.read_entries("run") == before


async def test_no_flipped_bit_goes_unnoticed(store: FilesStore, log: Path) -> None:
    whole, before = bytearray(log.read_bytes()), await store.read_entries("run")
    last_line = whole.rindex(b"\n", 0, -1) + 1
    for place in range(len(whole)):
        for bit in range(8):
            whole[place] ^= 1 << bit
            log.write_bytes(whole)
            flipped = whole[place]
            whole[place] ^= 1 << bit
            try:
                found = await store.read_entries("run")
            except StoreDamagedError:
                continue
            # Only what a cut write leaves counts as one: the last line without its end, or with zeros.
            assert found == before[:2]
            assert place == len(whole) - 1 or (place >= last_line and flipped == 0)
    log.write_bytes(whole)
    assert await store.read_entries("run") == before


@pytest.mark.parametrize("tail", [b"{", b'{"check":"0123', b"\0" * 50, b'{"check":"' + b"\0" * 30 + b"1}\n"])
async def test_a_torn_tail_is_ignored_told_and_cut_off_by_the_next_write(
    store: FilesStore, log: Path, tail: bytes
) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole + tail)
    assert await seqs(store) == [1, 2, 3]
    assert [(run, TORN in problem) for run, problem in await store.inspect()] == [("run", True)]
    assert log.read_bytes() == whole + tail
    (reply,) = await store.commit([commit("run", 4, owner=BOB, fence=2)])
    assert reply.refused is None
    assert await seqs(store) == [1, 2, 3, 4]
    assert log.read_bytes().startswith(whole + b'{"check":')
    assert [(run, "cut off" in problem) for run, problem in await store.inspect()] == [("run", True)]
    again = FilesStore(log.parent.parent)
    await again.open()
    assert await again.inspect() == []
    assert await seqs(again) == [1, 2, 3, 4]
    await again.close()


LINE_CHANGES = {
    "two swapped": lambda lines, _: [lines[0], lines[2], lines[1], lines[3]],
    "the last two swapped": lambda lines, _: [lines[0], lines[1], lines[3], lines[2]],
    "one dropped from the middle": lambda lines, _: [lines[0], lines[2], lines[3]],
    "the first dropped": lambda lines, _: lines[1:],
    "one doubled": lambda lines, _: [lines[0], lines[1], lines[1], lines[2], lines[3]],
    "the last doubled": lambda lines, _: [*lines, lines[3]],
    "an old one replayed": lambda lines, _: [*lines, lines[1]],
    "one of another run pasted in": lambda lines, other: [lines[0], other[0], *lines[1:]],
    "one of another run at the end": lambda lines, other: [*lines, other[0]],
    "all of another run": lambda _, other: other,
    "an empty line": lambda lines, _: [lines[0], b"\n", *lines[1:]],
    "zeros in the middle": lambda lines, _: [lines[0], b"\0" * len(lines[1]), *lines[2:]],
    "a torn line in the middle": lambda lines, _: [lines[0], lines[1][:-9] + b"\n", *lines[2:]],
    "a pickle": lambda _, __: [b"\x80\x04\x95\x1a\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\n", b"\n"],
    "no log at all": lambda _, __: [],
}


@pytest.mark.parametrize("change", LINE_CHANGES.values(), ids=LINE_CHANGES.keys())
async def test_moved_lines_are_damage(store: FilesStore, root: Path, log: Path, change) -> None:  # type: ignore[no-untyped-def]
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    other = (root / "other" / "log.jsonl").read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(change(lines, other)))
    await assert_damaged(store)


async def test_damage_is_named_with_the_first_seq_that_cannot_be_trusted(store: FilesStore, log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"state":2', b'"state":7'))
    await assert_damaged(store, seq=2)


async def test_a_mended_file_is_read_again(store: FilesStore, log: Path) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"state":2', b'"state":7'))
    await assert_damaged(store)
    log.write_bytes(whole)
    assert await seqs(store) == [1, 2, 3]


async def test_a_damaged_log_that_is_cut_before_the_damage_is_read_again(store: FilesStore, log: Path) -> None:
    first, *rest = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first + rest[0] + b"".join(rest[1:]).replace(b'"state":3', b'"state":7'))
    await assert_damaged(store)
    log.write_bytes(first)
    assert await seqs(store) == [1]


async def test_a_missing_log_is_damage(store: FilesStore, log: Path) -> None:
    log.unlink()
    await assert_damaged(store)


async def test_the_folder_of_another_run_is_damage(store: FilesStore, root: Path) -> None:
    shutil.rmtree(root / "run")
    shutil.copytree(root / "other", root / "run")
    await assert_damaged(store)


async def test_a_damaged_run_does_not_hold_up_the_others_of_its_batch(store: FilesStore, log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"state":2', b'"state":7'))
    replies = await store.commit([commit("run", 4), commit("other", 2), create("run")])
    assert [reply.refused for reply in replies] == [Refusal.STALE, None, Refusal.EXISTS]
    assert await seqs(store, "other") == [1, 2]


def unclaimable(root: Path, *runs: str) -> None:
    """Damage runs where neither a list nor a head shows it: in their segment, before the last anchor."""
    for run in runs:
        log = root / run / "log.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"seq":1,', b'"seq":7,'))


async def waiting_runs(store: FilesStore, *runs: Commit) -> None:
    """Make runs that nobody owns, long enough to have anchors."""
    for new in runs:
        run, large = new.run, b'"%s"' % (b"x" * 70_000)
        await store.commit([new, commit(run, entries=(entry(2, body=large),)), commit(run, 3)])
        await store.commit([commit(run, 4, change=HeadChange(owner=None))])


PENDING = (("pending", False),)


def pending(run: str, at: float, **fields: str) -> Commit:
    return create(run, status="pending", created_at=at, **fields)


@pytest.mark.parametrize("in_turn", [True, False])
async def test_a_damaged_run_takes_no_place_from_those_behind_it(store: FilesStore, root: Path, in_turn: bool) -> None:
    store.beat(owner(BOB), 15.0)
    await waiting_runs(store, *(pending(f"r{n}", float(n)) for n in range(5)))
    unclaimable(root, "r0", "r1", "r4")
    query = Query(in_turn=in_turn, states=PENDING, limit=1)
    got = [claim.head.id for _ in range(3) for claim in await store.claim_runs(query, BOB)]
    assert got == (["r2", "r3"] if in_turn else ["r3", "r2"])
    unowned = {head.id for head in await store.list_heads(Query(states=PENDING)) if head.owner is None}
    assert unowned == {"r0", "r1", "r4"}


async def test_what_is_claimed_for_a_damaged_run_keeps_to_limits_and_turns(store: FilesStore, root: Path) -> None:
    store.beat(owner(BOB), 15.0)
    await waiting_runs(
        store,
        pending("a1", 1.0, queue="a", flow="few"),
        pending("b1", 2.0, queue="b"),
        pending("a2", 3.0, queue="a", flow="few"),
        pending("a3", 4.0, queue="a"),
        pending("b2", 5.0, queue="b"),
        pending("a4", 6.0, queue="a"),
    )
    unclaimable(root, "b1")
    query = Query(in_turn=True, states=PENDING, limit=2, limits=(Limit("few", 1),))
    assert [claim.head.id for claim in await store.claim_runs(query, BOB)] == ["a1", "b2"]
    assert [claim.head.id for claim in await store.claim_runs(query, BOB)] == ["a3", "a4"]


async def test_a_damaged_run_can_be_deleted_unless_its_owner_lives(store: FilesStore, log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-20] + b"damage\n")
    store.beat(owner(BOB), 15.0)
    assert await store.delete_run("run") is False
    await store.retire_owner(BOB)
    assert await store.delete_run("run") is True
    assert await store.inspect() == []
    assert [reply.refused for reply in await store.commit([create("run")])] == [None]


async def test_an_inbox_is_guarded_like_a_log(store: FilesStore, root: Path) -> None:
    for n in range(3):
        await store.post_mail("run", Mail("send", b"%d" % n, f"k{n}"))
    inbox = root / "run" / "inbox.jsonl"
    whole = inbox.read_bytes()
    inbox.write_bytes(whole[:-5])
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    assert [mail.body for mail in claim.mail] == [b"0", b"1"]
    assert await store.post_mail("run", Mail("send", b"9", "k2")) is Posted.ACCEPTED
    first, second, third = inbox.read_bytes().splitlines(keepends=True)
    inbox.write_bytes(second + first + third)
    await assert_damaged(store)


@pytest.mark.parametrize("kind", ["symlink", "dangling", "fifo", "folder"])
@pytest.mark.parametrize("where", ["run", "run/log.jsonl", "run/inbox.jsonl"])
async def test_what_is_planted_is_not_followed(store: FilesStore, root: Path, where: str, kind: str) -> None:
    outside = root.parent / "outside"
    shutil.copytree(root / "run", outside)
    (outside / "inbox.jsonl").touch()
    target = outside / Path(where).name if where != "run" else outside
    planted = root / where
    if planted.exists():
        planted.rename(root.parent / "moved")
    if kind == "fifo":
        os.mkfifo(planted)
    elif kind == "folder":
        planted.mkdir()
    else:
        planted.symlink_to(target if kind == "symlink" else root.parent / "nowhere")
    before = {path: path.read_bytes() for path in outside.iterdir()}
    await assert_damaged(store)
    with pytest.raises(StoreDamagedError):
        await store.post_mail("run", Mail("send"))
    assert {path: path.read_bytes() for path in outside.iterdir()} == before
    assert not (root.parent / "nowhere").exists()


@pytest.mark.parametrize("run", ["../outside", "/etc/x", "a/../b", ".", "..", ".owners", "", "a\0b", "-rf", "a~b", "é"])
async def test_no_id_leads_out_of_the_store(store: FilesStore, root: Path, run: str) -> None:
    before = sorted(root.parent.rglob("*"))
    for use in (
        store.commit([create(run)]),
        store.read_heads([run]),
        store.read_entries(run),
        store.post_mail(run, Mail("send")),
        store.delete_run(run),
    ):
        with pytest.raises(InvalidIdError):
            await use
    assert await store.list_heads(Query(ids=(run,))) == []
    assert sorted(root.parent.rglob("*")) == before


async def test_files_are_for_their_owner_alone(store: FilesStore, root: Path) -> None:
    before = os.umask(0)
    try:
        await store.commit([create("open")])
        await store.post_mail("open", Mail("send"))
        await store.commit([commit("open", 2, rebase=entry(2))])
        store.beat(owner(ALICE), 15.0)
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in root.rglob("*")}
    assert {path for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == set()
    assert root.stat().st_mode & 0o777 == 0o700


async def test_stray_temporary_files_are_ignored_and_cleaned_by_the_next_rebase(store: FilesStore, log: Path) -> None:
    outside = log.parent.parent.parent / "outside"
    outside.write_text("untouched")
    (log.parent / "log.jsonl.tmp").symlink_to(outside)
    (log.parent / "inbox.jsonl.tmp").write_text('{"half')
    assert await store.inspect() == []
    await store.post_mail("run", Mail("send"))
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    taken = tuple(mail.id for mail in claim.mail)
    snapshot = entry(2, fence=2, body=b'"snapshot"')
    await store.commit([commit("run", owner=BOB, fence=3, rebase=snapshot, take=taken)])
    assert (await store.read_entries("run"))[0] == snapshot
    assert sorted(path.name for path in log.parent.iterdir()) == ["inbox.jsonl", "log.jsonl"]
    assert outside.read_text() == "untouched"


async def test_a_rewritten_run_is_guarded_like_any_other(store: FilesStore, log: Path) -> None:
    await store.post_mail("run", Mail("send", b"1", "k"))
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    change = HeadChange(base=2, floor=2)
    rebase = commit("run", owner=BOB, fence=3, rebase=entry(2), take=(claim.mail[0].id,), change=change)
    await store.commit([rebase])
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    log.write_bytes(b"".join(reversed(lines)))
    await assert_damaged(store)
    log.write_bytes(b"".join(lines))
    # A crash between the two renames leaves the inbox as it was: what the log took stays taken.
    assert await store.post_mail("run", Mail("send", b"2", "k")) is Posted.DUPLICATE
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    assert claim.mail == ()


async def test_a_crash_between_rewriting_log_and_inbox_takes_no_mail_twice(store: FilesStore, root: Path) -> None:
    inbox = root / "run" / "inbox.jsonl"
    for n in range(3):
        await store.post_mail("run", Mail("send", b"%d" % n))
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    old = inbox.read_bytes()
    taken = tuple(mail.id for mail in claim.mail[:2])
    await store.commit([commit("run", owner=BOB, fence=3, rebase=entry(2), take=taken)])
    assert inbox.read_bytes() != old
    inbox.write_bytes(old)
    (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    assert [mail.body for mail in claim.mail] == [b"2"]
    await store.post_mail("run", Mail("send", b"3"))
    (reply,) = await store.commit([commit("run", owner=BOB, fence=4)])
    assert [mail.body for mail in reply.mail] == [b"2", b"3"]


async def test_a_newer_store_is_refused_unchanged(store: FilesStore, root: Path) -> None:
    await store.close()
    (root / ".holdfast.json").write_text('{"version": 999, "new": [1]}')
    (root / ".gone-1").mkdir()
    before = {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")}
    with pytest.raises(StoreVersionError) as caught:
        await FilesStore(root).open()
    assert caught.value.found == 999
    assert {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")} == before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":"1"}', '{"version":null}', "\0"])
async def test_a_version_that_cannot_be_read_is_damage(root: Path, text: str) -> None:
    root.mkdir()
    (root / ".holdfast.json").write_text(text)
    with pytest.raises(StoreDamagedError):
        await FilesStore(root).open()


async def test_what_a_crash_left_half_made_or_half_deleted_is_removed(store: FilesStore, root: Path) -> None:
    for name in (".gone-1", ".new-old", ".new-young"):
        shutil.copytree(root / "run", root / name)
    os.utime(root / ".new-old", (0, 0))
    await store.close()
    await store.open()
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == [
        ".new-young",
        ".owners",
        "other",
        "run",
    ]
    assert {head.id for head in await store.list_heads(Query())} == {"run", "other"}


async def test_what_is_not_ours_is_told(store: FilesStore, root: Path) -> None:
    (root / "notes~").mkdir()
    (root / "RUN").mkdir()
    assert [run for run, _ in await store.inspect()] == [None, None]
    assert {head.id for head in await store.list_heads(Query())} == {"run", "other"}


async def test_the_lease_of_a_hostile_or_broken_file_is_none(store: FilesStore, root: Path) -> None:
    forged = f'{{"id":"{BOB}","name":"x","beat_at":0,"until":253402300799.0}}'
    for text in (forged, "{", "[]", '{"id":"../x"}'):
        (root / ".owners").mkdir(exist_ok=True)
        (root / ".owners" / f"{BOB}.json").write_text(text)
        assert not any(one.alive for one in await store.list_owners())
        assert len(await store.claim_runs(Query(ids=("run",)), ALICE)) == 1


async def test_no_byte_in_a_lease_stops_the_store(store: FilesStore, root: Path) -> None:
    """Leases are not synced: a power cut leaves anything in them."""
    store.beat(Owner(BOB, "bob:1", info=b'{"queues":["mail"]}'), 15.0)
    lease = root / ".owners" / f"{BOB}.json"
    whole = lease.read_bytes()
    for place in range(len(whole)):
        lease.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        assert await store.list_owners() == []
        assert [head and head.owned for head in await store.read_heads(["run"])] == [False]
    assert len(await store.claim_runs(Query(), ALICE)) == 2


async def test_a_lease_that_is_nested_too_deep_is_none(store: FilesStore, root: Path) -> None:
    store.beat(Owner(BOB, "bob:1"), 15.0)
    lease = root / ".owners" / f"{BOB}.json"
    lease.write_bytes(lease.read_bytes().replace(b'"info":{}', b'"info":' + b"[" * 9999 + b"]" * 9999))
    assert await store.list_owners() == []


async def test_a_person_can_read_the_log(store: FilesStore, log: Path) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    new: Entry = entry(4, fence=2, cursor=b'{"next":"analyze"}', body=body)
    await store.commit([commit("run", owner=BOB, fence=2, entries=(new,))])
    last = log.read_bytes().splitlines()[-1]
    assert b'"cursor":{"next":"analyze"},"body":' + body in last
