"""One run's folder: its log and its inbox, and what this process knows of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec
from msgspec import UNSET

from holdfast.core.record import Ledger
from holdfast.errors import StoreDamagedError
from holdfast.model import Commit, Entry, Head, Mail
from holdfast.store.files import lines
from holdfast.store.files.anchors import is_due
from holdfast.store.files.disk import Disk, NotPlainError, Stamp, folder_name
from holdfast.store.files.lines import Anchor, LogLine, MailLine
from holdfast.store.files.reader import BrokenLineError, LineFile
from holdfast.store.files.view import INBOX, LOG, View

_log_lines = msgspec.json.Decoder(LogLine)
_mail_lines = msgspec.json.Decoder(MailLine)
L = TypeVar("L")
Place = tuple[int, str, int]
"""Offset of a line, and the checksum and the seq before it."""
Index = list[tuple[int, int, str]]
"""Last seq, offset and checksum before, of lines with entries."""


class RunFolder:
    """What is known of one run. What writes is given the run's open and locked folder, what reads a view of it.

    The log is read from its last anchor on, and what lies before that when somebody wants those entries. With
    `whole` all of it is read, and every anchor held against what the lines before it come to.
    """

    def __init__(self, run: str, disk: Disk, *, whole: bool = False) -> None:
        self.run, self.name = run, folder_name(run)
        self._disk, self._whole = disk, whole
        self._log, self._inbox = LineFile(run, LOG), LineFile(run, INBOX)
        self.forget()

    def forget(self) -> None:
        """Know nothing, so that everything is read again."""
        self._log.forget()
        self._inbox.forget()
        self.begun = False  # whether the first line was read, or an anchor: they have the head
        self.ledger = Ledger(Head(id=self.run, flow="", status=""))
        self._letters = 0  # how many pieces of mail the inbox holds, taken ones included
        self._start: Place = (0, self._log.first_check, 0)  # of the oldest line that is known of
        self._lines: Index = []  # from there on
        self._anchored = 0  # offset of the last anchor
        self._damage: tuple[dict[str, Stamp | None], StoreDamagedError] | None = None

    def torn(self, file: str) -> int:
        """How many bytes of an unfinished write stand at the end of the log or of the inbox."""
        return (self._log if file == LOG else self._inbox).torn

    def is_current(self, view: View) -> bool:
        """Whether nothing was written since `catch_up`. Raises the damage that it found, if that still stands."""
        if self._damage is not None and self._damage[0] == view.stamps:
            raise self._damage[1]  # a large log is not read again and again only to find the same
        return self.begun and self._log.is_current(view) and self._inbox.is_current(view)

    # Reading

    def catch_up(self, view: View) -> None:
        """Read what was written since the last time. Raises StoreDamagedError."""
        if self.is_current(view):
            return
        try:
            self._read(view)
        except StoreDamagedError as error:
            if not view.is_kept:  # while others write, it may only look like that
                self._damage = (view.stamps, error)
            raise

    def _read(self, view: View) -> None:
        with self._damage_named():
            if not self.begun or self._damage or self._log.was_replaced(view) or self._inbox.was_replaced(view):
                self.forget()
            try:
                self._read_new(view)
            except BrokenLineError:
                # Another file may have got the inode of the old one: only reading all of it tells.
                self.forget()
                self._read_new(view)

    def _read_new(self, view: View) -> None:
        # The inbox first: a line of the log takes only mail that was posted before it.
        self._inbox.read_new(view, self._take_mail)
        if not self.begun and not self._whole and (anchor := self._log.find_anchor(view)):
            self._begin_at(anchor)
        self._log.read_new(view, self._take_line)
        if not self.begun:
            raise BrokenLineError(LOG, "its first line is missing")

    def _begin_at(self, anchor: Anchor) -> None:
        self._log.begin_at(anchor.at, anchor.after, anchor.line)
        self._start = (anchor.at, anchor.after, anchor.seq)
        self.ledger.head, self.ledger.first = lines.anchored_head(anchor), anchor.first
        self.begun = True

    def _take_mail(self, payload: bytes, offset: int, before: str) -> None:
        line = _decoded(_mail_lines, payload, INBOX)
        mail = lines.mail_of(line)
        if mail is None:
            self.ledger.last_mail = line.id
            self.ledger.used.update(line.used)
        else:
            self.ledger.receive(mail)
            self._letters += 1

    def _take_line(self, payload: bytes, offset: int, before: str) -> None:
        line = _decoded(_log_lines, payload, LOG)
        if line.head is not None and not self.begun and line.head.id == self.run:
            first = line.entries[0].seq if line.entries else 1
            self.ledger.head = lines.head_of(line.head, seq=first - 1)
            self.ledger.first = first
            self.begun = True
        elif line.head is not None or not self.begun:
            raise BrokenLineError(LOG, "it does not begin with the head of this run")
        ledger, mark = self.ledger, line.inbox
        if line.anchor is not None:
            self._check_anchor(line.anchor, offset, before)
            self._anchored, mark = offset, line.anchor.inbox
        if mark is not None:
            waiting = set(mark.waiting)
            ledger.inbox = [mail for mail in ledger.inbox if mail.id > mark.last or mail.id in waiting]
            ledger.last_mail = max(ledger.last_mail, mark.last)  # ids that a power cut took back are not given again
        if line.claim is not None:
            ledger.take_over(line.claim)
        _note_line(self._lines, line, (offset, before, ledger.head.seq))
        ledger.apply(lines.commit_of(self.run, line))

    def _check_anchor(self, anchor: Anchor, offset: int, before: str) -> None:
        found = (anchor.at, anchor.after, anchor.first, lines.anchored_head(anchor))
        if found != (offset, before, self.ledger.first, self.ledger.head):
            raise BrokenLineError(LOG, "an anchor is not what the lines before it come to")

    def read_entries(
        self, view: View, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The entries with after < seq <= upto; at most the first `limit`. Raises StoreDamagedError."""
        end = self.ledger.head.seq if upto is None else min(upto, self.ledger.head.seq)
        if limit is not None:
            end = min(end, max(after, self.ledger.first - 1) + limit)  # seqs have no gaps
        found: list[Entry] = []
        if end <= after:
            return found
        with self._damage_named():
            self._reach_back(view, after)
            _, offset, check = self._lines[bisect_left(self._lines, after + 1, key=lambda line: line[0])]
            for payload, _, _ in self._log.read_from(view, offset, check):
                texts = _decoded(_log_lines, payload, LOG).entries
                found += [lines.entry_of(text) for text in texts if after < text.seq <= end]
                if texts and texts[-1].seq >= end:
                    break
        return found

    def _reach_back(self, view: View, after: int) -> None:
        """Know all lines with entries behind `after`, from the next older anchor on. Raises BrokenLineError."""
        offset, _, seq = self._start
        if offset == 0 or after >= seq:
            return
        found = self._log.find_anchor(view, offset, after)
        start = (found.at, found.after, found.seq) if found else (0, self._log.first_check, self.ledger.first - 1)
        index: Index = []
        last = start[2]
        try:
            for payload, at, before in self._log.read_from(view, *start[:2], offset):
                last = _note_line(index, _decoded(_log_lines, payload, LOG), (at, before, last))
        except BrokenLineError as error:
            error.seq = last + 1
            raise
        self._start, self._lines = start, index + self._lines

    # Writing

    def write_commits(self, folder: int, commits: Sequence[Commit], after: Ledger) -> None:
        """Write accepted commits; `after` is the run as they leave it."""
        if any(commit.rebase for commit in commits):
            self._rewrite(folder, commits, after)
        else:
            self._append_line(folder, lines.commit_line(commits), after, "commit")

    def write_claim(self, folder: int, after: Ledger) -> None:
        """Write that the run was claimed; `after` is the run as that leaves it."""
        assert after.head.owner is not None
        line = LogLine(claim=after.head.owner, fence=after.head.fence)
        self._append_line(folder, line, after, "claim")

    def _append_line(self, folder: int, line: LogLine, after: Ledger, point: str) -> None:
        log, ledger = self._log, self.ledger
        at_segment = line.change is not None and line.change.base is not UNSET
        if is_due(log.good - self._anchored, ledger.head, len(ledger.inbox), at_segment=at_segment):
            line.anchor = lines.anchor_text(ledger, after=log.check, at=log.good, line=log.last)
        data, check = lines.seal(line, log.check)
        with self._forgotten_on_failure():
            to = self._disk.append(folder, LOG, data, log.good, point)
        if line.anchor is not None:
            self._anchored = log.good
        if line.entries:
            self._lines.append((after.head.seq, log.good, log.check))
        log.moved_on(to, check)
        self.ledger = after

    def write_mail(self, folder: int, mail: Mail) -> None:
        """Put stamped mail into the inbox."""
        data, check = lines.seal(lines.mail_line(mail), self._inbox.check)
        with self._forgotten_on_failure():
            to = self._disk.append(folder, INBOX, data, self._inbox.good, "mail")
        self._inbox.moved_on(to, check)
        self.ledger.receive(mail)
        self._letters += 1

    def _rewrite(self, folder: int, commits: Sequence[Commit], after: Ledger) -> None:
        """Write the log anew from its new first entry on, and then the inbox without what was taken."""
        oldest = min(commit.rebase.seq for commit in commits if commit.rebase is not None)
        log = self.new_log(commits, after, self.read_entries(View(folder), oldest))
        with self._forgotten_on_failure():
            self._disk.replace(folder, LOG, log, "commit")
        if self._letters > len(after.inbox):
            known = MailLine(after.last_mail, used=sorted(after.used))
            inbox = [known, *(lines.mail_line(mail) for mail in after.inbox)]
            # The log is on the disk and says what was taken, so it does no harm if this fails.
            with suppress(OSError):
                self._disk.replace(folder, INBOX, lines.seal_all(inbox, self._inbox.first_check), "inbox")
        self.forget()

    def new_log(self, commits: Sequence[Commit], after: Ledger, kept: list[Entry]) -> bytes:
        """A whole log, of a new run or of one whose entries so far are `kept`, as the commits leave it."""
        if not any(commit.rebase for commit in commits):
            return lines.seal_all([lines.commit_line(commits)], self._log.first_check)
        for commit in commits:
            kept += commit.entries
            if commit.rebase is not None:
                kept = [commit.rebase, *(entry for entry in kept if entry.seq > commit.rebase.seq)]
        head, mark = lines.head_text(after.head), lines.inbox_mark(after)
        first = LogLine(head=head, inbox=mark, entries=[lines.entry_text(kept[0])])
        rest = (LogLine(entries=[lines.entry_text(entry)]) for entry in kept[1:])
        return lines.seal_all([first, *rest], self._log.first_check)

    # Errors

    @contextmanager
    def _forgotten_on_failure(self) -> Iterator[None]:
        """When a write failed, nobody knows what stands in the file: read it again."""
        try:
            with self._damage_named():
                yield
        except BaseException:
            self.forget()
            raise

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except BrokenLineError as error:
            seq = (error.seq or self.ledger.head.seq + 1) if error.file == LOG else None
            raise StoreDamagedError(self.run, seq, str(error)) from None
        except NotPlainError as error:
            raise StoreDamagedError(self.run, None, str(error)) from None


def _note_line(index: Index, line: LogLine, place: Place) -> int:
    """Put a line into the index if it has entries, which must follow those before it; gives the last seq."""
    offset, before, last = place
    seqs = [text.seq for text in line.entries]
    if seqs != list(range(last + 1, last + 1 + len(seqs))):
        raise BrokenLineError(LOG, "its entries do not follow each other")
    if seqs:
        index.append((seqs[-1], offset, before))
    return last + len(seqs)


def _decoded(decoder: msgspec.json.Decoder[L], payload: bytes, file: str) -> L:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BrokenLineError(file, f"a line cannot be read ({error})") from error
