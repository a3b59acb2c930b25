"""The owners of a store in files: a small file for each, beside a lock that tells who is dead at once."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.clock import Clock
from holdfast.errors import UsageError
from holdfast.model import Owner
from holdfast.store.files.disk import Disk, NotPlainError, open_file
from holdfast.store.owners import LocalOwners

FOLDER = ".owners"
_ID = re.compile("[0-9a-f]{15}")
_FORGOTTEN_AFTER = 3600.0  # seconds that a dead owner stays in the list


class Lease(msgspec.Struct):
    """What an owner last said of itself."""

    id: str
    name: str
    beat_at: float
    until: float
    info: msgspec.Raw = msgspec.Raw(b"{}")


class Leases:
    """Who lives. Safe to use from any thread."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._path = root / FOLDER
        self._clock = clock
        self._lock = threading.Lock()
        self._disk = Disk(durable=False)  # after a power cut every owner is dead, whatever its lease says
        self._locks = LocalOwners(root / ".owners.lock")
        self._mine: set[str] = set()

    def beat(self, owner: Owner, lease: float) -> None:
        """Prolong the lease of an owner of this process."""
        if not _ID.fullmatch(owner.id):
            raise UsageError(f"{owner.id!r} is not the id of an owner: those are 15 lower-case hex digits")
        with self._lock:
            now = self._clock.now()  # not before others were out of the way: the lease begins then
            self._locks.hold(owner.id)
            if owner.id not in self._mine:
                self._mine.add(owner.id)
                self._sweep(now)
            data = msgspec.json.encode(Lease(owner.id, owner.name, now, now + lease, msgspec.Raw(owner.info)))
            folder = self._open()
            try:
                self._disk.replace(folder, f"{owner.id}.json", data, "beat")
            finally:
                os.close(folder)

    def retire(self, owner: str) -> None:
        """Forget an owner."""
        with self._lock:
            if _ID.fullmatch(owner):
                with suppress(FileNotFoundError):
                    os.unlink(self._path / f"{owner}.json")
                self._locks.drop(owner)
            self._mine.discard(owner)

    def let_go(self) -> None:
        """Let others see the owners of this process as dead."""
        with self._lock:
            for owner in self._mine:
                self._locks.drop(owner)
            self._mine.clear()

    def owners(self) -> list[Owner]:
        """The owners that are known, by id."""
        now = self._clock.now()
        with self._lock:
            return [
                Owner(
                    lease.id,
                    lease.name,
                    lease.until > now and not self._locks.dead(lease.id),
                    lease.beat_at,
                    bytes(lease.info),
                )
                for lease in self._read()
            ]

    def live(self) -> frozenset[str]:
        """The ids of the owners that are alive."""
        return frozenset(owner.id for owner in self.owners() if owner.alive)

    def _open(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
        return os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _read(self) -> list[Lease]:
        folder = self._open()
        try:
            ids = [name[:-5] for name in sorted(os.listdir(folder)) if name.endswith(".json")]
            return [lease for owner in ids if _ID.fullmatch(owner) and (lease := _lease(folder, owner))]
        finally:
            os.close(folder)

    def _sweep(self, now: float) -> None:
        """Remove what owners left that died long ago: without it they count as dead all the same."""
        for lease in self._read():
            if lease.until + _FORGOTTEN_AFTER < now:
                with suppress(FileNotFoundError):
                    os.unlink(self._path / f"{lease.id}.json")


def _lease(folder: int, owner: str) -> Lease | None:
    """The lease of an owner; None when it has none that can be read, which makes it a dead one."""
    try:
        with os.fdopen(open_file(folder, f"{owner}.json"), "rb") as file:
            # As text first: msgspec skips over what it does not decode, and whoever reads `info` later would stumble.
            lease = msgspec.json.decode(file.read().decode(), type=Lease)
    except (FileNotFoundError, NotPlainError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return None
    return lease if lease.id == owner else None
