"""Anchors in the logs of the store in files: what they save, and that a damaged one is never trusted."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import StoreDamagedError
from holdfast.model import Entry, Head, HeadChange, Mail, Posted, Query
from holdfast.store.base import Store
from holdfast.store.files import FilesStore, anchors, reader
from holdfast.testing import ManualClock, StoreContract
from holdfast.testing.build import ALICE, BOB, commit, create, entry

MARK = b'","anchor":{"after":"'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def log(root: Path) -> Path:
    return root / "run" / "log.jsonl"


@pytest.fixture
def dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """An anchor in every line but the first."""
    for name in ("EVERY", "AT_SEGMENT", "SHARE"):
        monkeypatch.setattr(anchors, name, 0)


@pytest.mark.usefixtures("dense")
class TestFilesStoreWithAnchorsEverywhere(StoreContract):
    capabilities = frozenset({"durable", "shared", "inline"})

    @pytest.fixture
    def make_store(self, tmp_path: Path, clock: ManualClock) -> Callable[[], Store]:
        return lambda: FilesStore(tmp_path / "runs", clock=clock, durability="process")


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[FilesStore]:
    """A store as a new process would have it."""
    store = FilesStore(root, durability="process")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def look(root: Path) -> Head:
    async with opened(root) as store:
        (head,) = await store.read_heads(["run"])
        assert head is not None
        return head


async def read(root: Path, **range_: int) -> list[Entry]:
    async with opened(root) as store:
        return await store.read_entries("run", **range_)


async def inspected(root: Path) -> list[str]:
    async with opened(root) as store:
        return [text for _, text in await store.inspect()]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How many bytes are read of files, and how many lines are looked at."""
    counts = {"bytes": 0, "lines": 0}
    unseal, fdopen = reader.unseal, os.fdopen

    class Counting(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            found = super().readinto(buffer)
            counts["bytes"] += found or 0
            return found

    def counting_fdopen(file: int, *_: Any) -> builtins.object:
        return io.BufferedReader(Counting(file))

    def counting_unseal(line: bytes, before: str) -> Any:
        counts["lines"] += 1
        return unseal(line, before)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", counting_fdopen)
        patch.setattr(reader, "unseal", counting_unseal)
        yield counts
    assert os.fdopen is fdopen


async def write(root: Path, total: int, *, segment: int | None, size: int = 100) -> None:
    """A run of so many entries, one to a commit, with a new segment every so often."""
    async with opened(root) as store:
        await store.commit([create("run", metadata=b'{"caller":"u7"}')])
        for seq in range(2, total + 1):
            change = HeadChange(base=seq) if segment and seq % segment == 0 else None
            new = entry(seq, body=b'"%s"' % (b"x" * size))
            await store.commit([commit("run", entries=(new,), change=change)])


async def test_a_head_and_a_claim_cost_what_stands_behind_the_last_anchor(
    root: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(root, 5050, segment=100)
    assert log.stat().st_size > 1_000_000
    with counted(monkeypatch) as seen:
        head = await look(root)
    assert (head.seq, head.base) == (5050, 5000)
    assert seen["bytes"] < 3 * 64 * 1024
    assert seen["lines"] < 200
    async with opened(root) as store:
        with counted(monkeypatch) as seen:
            (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    assert [one.seq for one in claim.entries] == list(range(5000, 5051))
    assert seen["bytes"] < 5 * 64 * 1024
    assert seen["lines"] < 300


async def test_a_claim_reads_from_the_anchor_before_its_segment(
    root: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that has grown past several anchors."""
    await write(root, 4100, segment=3000)
    async with opened(root) as store:
        with counted(monkeypatch) as seen:
            (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
        assert [one.seq for one in claim.entries] == list(range(3000, 4101))
    assert seen["lines"] < 2 * 1101 + 300
    assert seen["bytes"] < log.stat().st_size


async def test_a_few_entries_are_read_from_the_anchor_before_them(
    root: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(root, 3000, segment=None)
    whole = await read(root)
    async with opened(root) as store:
        with counted(monkeypatch) as seen:
            assert await store.read_entries("run", after=2500, limit=3) == whole[2500:2503]
        assert seen["lines"] < 1300
        assert await store.read_entries("run", after=1000, upto=1002) == whole[1000:1002]
        assert await store.read_entries("run") == whole
    assert [one.seq for one in whole] == list(range(1, 3001))


@pytest.mark.parametrize(("segment", "size", "metadata"), [(None, 30, 0), (10, 30, 0), (50, 2000, 0), (10, 30, 5000)])
async def test_anchors_take_a_small_share_of_the_log(
    root: Path, log: Path, segment: int | None, size: int, metadata: int
) -> None:
    async with opened(root) as store:
        await store.commit([create("run", metadata=b'{"a":"%s"}' % (b"x" * metadata))])
        for seq in range(2, 1500):
            change = HeadChange(base=seq) if segment and seq % segment == 0 else None
            new = entry(seq, body=b'"%s"' % (b"x" * size))
            await store.commit([commit("run", entries=(new,), change=change)])
    lines = log.read_bytes().splitlines()
    taken = [len(msgspec.json.encode(found)) for line in lines if (found := msgspec.json.decode(line).get("anchor"))]
    assert taken
    assert sum(taken) < log.stat().st_size / anchors.SHARE


async def test_a_log_without_anchors_is_read_as_before_and_gets_one_with_the_next_line(
    root: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.store.files.folder.is_due", lambda *_, **__: False)
        await write(root, 1000, segment=100)
    assert MARK not in log.read_bytes()
    assert (await look(root)).seq == 1000
    assert [one.seq for one in await read(root)] == list(range(1, 1001))
    async with opened(root) as store:
        (claim,) = await store.claim_runs(Query(ids=("run",)), BOB)
    assert claim.head.base == 1000
    assert log.read_bytes().count(MARK) == 1
    with counted(monkeypatch) as seen:
        assert await look(root) == claim.head
    assert seen["lines"] < 5
    assert await inspected(root) == []


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """An anchor where a segment begins."""
    monkeypatch.setattr(anchors, "AT_SEGMENT", 0)
    monkeypatch.setattr(anchors, "SHARE", 0)


async def story(root: Path) -> None:
    """Ten entries in ten lines, with anchors at 4, 7 and 9, a claim, and mail that is taken or waits."""
    async with opened(root) as store:
        await store.commit([create("run"), create("other")])
        for n in range(3):
            await store.post_mail("run", Mail("send", b"%d" % n, f"k{n}"))
        await store.commit([commit("run", 2, take=(1,))])
        await store.claim_runs(Query(ids=("run",)), BOB)
        for seq in range(3, 11):
            change = HeadChange(base=seq, status=f"s{seq}") if seq in (4, 7, 9) else None
            await store.commit([commit("run", seq, owner=BOB, fence=2, change=change)])


async def heads_by_size(root: Path, log: Path) -> dict[int, Head]:
    """The head at each end of a line, as folding the whole log gives it."""
    whole, found = log.read_bytes(), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader.LineFile, "find_anchor", lambda *_: None)
        for size in (n + 1 for n, byte in enumerate(whole) if byte == ord("\n")):
            log.write_bytes(whole[:size])
            found[size] = await look(root)
    log.write_bytes(whole)
    return found


@pytest.mark.usefixtures("sparse")
async def test_an_anchor_is_found_wherever_a_block_ends(root: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await story(root)
    size = log.stat().st_size
    with log.open("rb") as file:
        for block in (1, 2, 66, 67, 68, *range(100, 1000, 7)):
            monkeypatch.setattr(anchors, "_BLOCK", block)
            assert [anchor.seq for anchor in anchors.anchors_before(file, size, "run")] == [8, 6, 3]


@pytest.mark.usefixtures("sparse")
async def test_no_bit_flipped_in_a_log_with_anchors_gives_another_head_or_other_entries(root: Path, log: Path) -> None:
    await story(root)
    heads, before = await heads_by_size(root, log), await read(root)
    whole = bytearray(log.read_bytes())
    assert whole.count(MARK) == 3
    last_line = whole.rindex(b"\n", 0, -1) + 1
    # All of the last line, and every third byte before it: three does not divide eight, so every bit has its turn.
    for place in (*range(0, last_line, 3), *range(last_line, len(whole))):
        flip = 1 << (place % 8)
        whole[place] ^= flip
        log.write_bytes(whole)
        torn = place == len(whole) - 1 or (place >= last_line and whole[place] == 0)
        whole[place] ^= flip
        async with opened(root) as store:
            try:
                (head,) = await store.read_heads(["run"])
                assert head == heads[last_line if torn else len(whole)], place
            except StoreDamagedError:
                assert not torn
            try:
                (claim,) = await store.claim_runs(Query(ids=("run",)), ALICE) or (None,)
                assert claim is None or list(claim.entries) == before[8 : 9 if torn else 10]
            except StoreDamagedError:
                pass
            try:
                assert await store.read_entries("run") == before[: 9 if torn else 10]
                assert torn, place
            except StoreDamagedError:
                assert not torn
            if not torn:
                assert [run for run, _ in await store.inspect()] == ["run"]


@pytest.mark.usefixtures("sparse")
async def test_a_log_with_anchors_cut_anywhere_gives_its_whole_lines(root: Path, log: Path) -> None:
    await story(root)
    heads, whole, before = await heads_by_size(root, log), log.read_bytes(), await read(root)
    near_ends = {end + by for end in heads for by in range(-2, 3)}
    for size in range(min(heads), len(whole)):
        if size % 3 and size not in near_ends:
            continue
        log.write_bytes(whole[:size])
        head = heads[max(end for end in heads if end <= size)]
        async with opened(root) as store:
            assert await store.read_heads(["run"]) == [head]
            assert await store.read_entries("run", after=head.base - 1) == before[head.base - 1 : head.seq]
            assert await store.read_entries("run") == before[: head.seq]


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "an anchor doubled": lambda lines: [*lines[:8], lines[7], *lines[8:]],
    "an old anchor at the end": lambda lines: [*lines, lines[4]],
    "the last anchor at the end": lambda lines: [*lines, lines[9]],
    "an older end of the log": lambda lines: [*lines, *lines[7:9]],
    "two anchors swapped": lambda lines: [*lines[:7], lines[9], lines[8], lines[7], *lines[10:]],
    "an anchor swapped with the line before": lambda lines: [*lines[:8], lines[9], lines[8], *lines[10:]],
    "an anchor dropped": lambda lines: [*lines[:9], *lines[10:]],
    "the line before the last anchor dropped": lambda lines: [*lines[:8], *lines[9:]],
    "the line before the last anchor zeroed": lambda lines: [*lines[:8], b"\0" * len(lines[8]), *lines[9:]],
    "the first line dropped": lambda lines: lines[1:],
    "an anchor zeroed": lambda lines: [*lines[:9], b"\0" * (len(lines[9]) - 1) + b"\n", *lines[10:]],
    "an anchor cut in the middle": lambda lines: [*lines[:9], lines[9][:80] + b"\n", *lines[10:]],
    "an anchor without its end": lambda lines: [*lines[:9], lines[9][:-1], *lines[10:]],
    "a line of another length before": lambda lines: [lines[0], lines[1][:-2] + b" }\n", *lines[2:]],
    "everything but the first line and the anchor": lambda lines: [lines[0], *lines[9:]],
}


@pytest.mark.usefixtures("sparse")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_moved_anchors_are_damage(root: Path, log: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    await story(root)
    lines = log.read_bytes().splitlines(keepends=True)
    assert [n for n, line in enumerate(lines) if MARK in line] == [4, 7, 9]
    log.write_bytes(b"".join(change(lines)))
    async with opened(root) as store:
        for use in (store.read_heads(["run"]), store.read_entries("run"), store.commit([commit("run", 11)])):
            with pytest.raises(StoreDamagedError):
                await use
        assert [head.id for head in await store.list_heads(Query())] == ["other"]
        assert await store.claim_runs(Query(ids=("run",)), ALICE) == []
        assert [run for run, _ in await store.inspect()] == ["run"]


@pytest.mark.usefixtures("sparse")
async def test_an_end_of_another_log_that_fits_its_offset_is_damage(
    root: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a log as it was before it was written anew, put behind one of exactly the right length."""
    await story(root)
    old = log.read_bytes().splitlines(keepends=True)
    async with opened(root) as store:
        await store.commit([commit("run", owner=BOB, fence=2, rebase=entry(9, fence=2), change=HeadChange(floor=9))])
        new = log.read_bytes()
        missing = len(b"".join(old[:9])) - len(new)
        assert missing > 1000
        filler = entry(11, fence=2, body=b'""')
        await store.commit([commit("run", entries=(filler,), owner=BOB, fence=2)])
        missing -= len(log.read_bytes()) - len(new)
        log.write_bytes(new)
    async with opened(root) as store:
        filler = entry(11, fence=2, body=b'"%s"' % (b"x" * missing))
        await store.commit([commit("run", entries=(filler,), owner=BOB, fence=2)])
        assert (await store.read_heads(["run"]))[0].seq == 11  # type: ignore[union-attr]
    assert log.stat().st_size == len(b"".join(old[:9]))
    log.write_bytes(log.read_bytes() + b"".join(old[9:]))
    with pytest.raises(StoreDamagedError):
        await look(root)
    monkeypatch.setattr(anchors, "begins_with_check", lambda *_: True)
    with pytest.raises(StoreDamagedError):
        await read(root)


@pytest.mark.usefixtures("sparse")
async def test_the_log_of_another_run_is_damage_whatever_its_anchors_say(root: Path, log: Path) -> None:
    await story(root)
    (root / "other" / "log.jsonl").write_bytes(log.read_bytes())
    async with opened(root) as store:
        with pytest.raises(StoreDamagedError):
            await store.read_heads(["other"])


@pytest.mark.usefixtures("sparse")
async def test_damage_before_the_last_anchor_is_told_to_those_who_read_it(root: Path, log: Path) -> None:
    await story(root)
    head, before = await look(root), await read(root)
    log.write_bytes(log.read_bytes().replace(b'"state":5}', b'"state":6}'))
    async with opened(root) as store:
        assert await store.read_heads(["run"]) == [head]
        assert await store.read_entries("run", after=8) == before[8:]
        assert await store.read_entries("run", after=6) == before[6:]
        for after in (0, 4, 5):
            with pytest.raises(StoreDamagedError) as caught:
                await store.read_entries("run", after=after)
            assert caught.value.seq == 5
        assert await store.inspect() == [("run", "log.jsonl: a line does not match its checksum (at seq 5)")]
        assert await store.read_heads(["run"]) == [head]
        (claim,) = await store.claim_runs(Query(ids=("run",)), ALICE)
        assert list(claim.entries) == before[8:]
        (reply,) = await store.commit([commit("run", 11, fence=3)])
        assert reply.refused is None


async def test_a_run_whose_segment_is_damaged_is_not_claimed_and_not_changed(
    root: Path, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write(root, 1000, segment=None)
    damaged = log.read_bytes().replace(b'"seq":2,', b'"seq":3,')
    log.write_bytes(damaged)
    async with opened(root) as store:
        await store.commit([create("sound")])
        assert (await store.read_heads(["run"]))[0] is not None
        with pytest.raises(StoreDamagedError) as caught:
            await store.claim_runs(Query(ids=("run",)), BOB)
        assert (caught.value.run_id, caught.value.seq) == ("run", 2)
        for _ in range(2):
            assert [claim.head.id for claim in await store.claim_runs(Query(), BOB)] == ["sound"]
    assert log.read_bytes() == damaged
    assert [record.getMessage()[:24] for record in caplog.records] == ["holdfast: left out: run@"]


@pytest.mark.usefixtures("dense")
async def test_an_anchor_that_lies_is_found_by_inspect(root: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is right, and what it says is not: a defect, not damage."""
    from holdfast.store.files import lines

    anchor_text = lines.anchor_text

    def lying(*args: Any, **place: Any) -> Any:
        anchor = anchor_text(*args, **place)
        anchor.head.fence += 1
        return anchor

    async with opened(root) as store:
        await store.commit([create("run")])
        monkeypatch.setattr(lines, "anchor_text", lying)
        await store.commit([commit("run", 2)])
    assert await inspected(root) == ["log.jsonl: an anchor is not what the lines before it come to (at seq 2)"]


@pytest.mark.usefixtures("dense")
async def test_mail_stays_taken_and_keys_stay_used_across_an_anchor(root: Path) -> None:
    await story(root)
    async with opened(root) as store:
        assert await store.post_mail("run", Mail("send", b"9", "k0")) is Posted.DUPLICATE
        assert await store.post_mail("run", Mail("send", b"3", "k3")) is Posted.ACCEPTED
        (claim,) = await store.claim_runs(Query(ids=("run",)), ALICE)
        assert [mail.body for mail in claim.mail] == [b"1", b"2", b"3"]
        await store.commit([commit("run", fence=3, take=(2, 4))])
    async with opened(root) as store:
        (claim,) = await store.claim_runs(Query(ids=("run",)), ALICE)
        assert [mail.body for mail in claim.mail] == [b"2"]


@pytest.mark.usefixtures("dense")
async def test_mail_that_took_the_place_of_lost_mail_is_not_taken_for_it(root: Path) -> None:
    """A reader saw and took mail that was not flushed yet, and a power cut took it back."""
    async with opened(root) as store:
        await store.commit([create("run")])
        await store.post_mail("run", Mail("send", b"lost"))
        await store.commit([commit("run", 2, take=(1,))])
        await store.commit([commit("run", 3)])
    (root / "run" / "inbox.jsonl").write_bytes(b"")
    async with opened(root) as store:
        assert await store.post_mail("run", Mail("send", b"new")) is Posted.ACCEPTED
    async with opened(root) as store:
        (claim,) = await store.claim_runs(Query(ids=("run",)), ALICE)
        assert [(mail.id, mail.body) for mail in claim.mail] == [(2, b"new")]


@pytest.mark.usefixtures("dense")
async def test_a_log_written_anew_keeps_what_follows_the_new_first_entry(root: Path, log: Path) -> None:
    await story(root)
    head = await look(root)
    async with opened(root) as store:  # which has read only the end of it
        rebase = entry(5, fence=2, body=b'"snapshot"')
        await store.commit([commit("run", 11, owner=BOB, fence=2, rebase=rebase, change=HeadChange(floor=5))])
        await store.commit([commit("run", 12, owner=BOB, fence=2)])
    found = await read(root)
    assert [one.seq for one in found] == list(range(5, 13))
    assert found[0] == rebase
    after = await look(root)
    assert (after.seq, after.floor, after.base, after.fence) == (12, 5, head.base, head.fence)
    assert log.read_bytes().count(MARK) == 1
    assert await inspected(root) == []


@pytest.mark.usefixtures("dense")
async def test_two_who_write_in_turns_find_the_same(root: Path) -> None:
    async with opened(root) as one, opened(root) as two:
        await one.commit([create("run")])
        for seq in range(2, 30):
            await (one if seq % 3 else two).commit([commit("run", seq, change=HeadChange(base=seq))])
            assert await one.read_heads(["run"]) == await two.read_heads(["run"]) == [await look(root)]
        assert await one.read_entries("run") == await two.read_entries("run") == await read(root)
        assert await one.inspect() == []


async def test_words_of_a_user_are_not_taken_for_an_anchor(root: Path, log: Path) -> None:
    await write(root, 400, segment=100)
    anchor = next(line for line in reversed(log.read_bytes().splitlines()) if MARK in line)
    head = await look(root)
    async with opened(root) as store:
        for seq, body in ((401, anchor), (402, b"\n" + anchor + b"\n"), (403, msgspec.json.encode(anchor.decode()))):
            await store.commit([commit("run", entries=(entry(seq, body=body),))])
    found = await look(root)
    assert (found.seq, found.base) == (403, head.base)
    assert [one.body for one in await read(root, after=400)][:2] == [anchor, b"\n" + anchor + b"\n"]
