"""Stores that can be seen and not written: what to do is said, and it is not taken for trouble with the output."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_CAPBSET_DROP, _MAY_IGNORE_MODES = 24, (1, 2)


def obey() -> None:
    """Let root be refused by the modes of files as everybody is, once it has become another program."""
    if os.geteuid() == 0:
        for capability in _MAY_IGNORE_MODES:
            assert ctypes.CDLL(None).prctl(_CAPBSET_DROP, capability, 0, 0, 0) == 0


def typed(cli: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        cwd=cli.folder,
        env=cli.environment,
        preexec_fn=obey,
        capture_output=True,
        text=True,
        check=False,
    )


def close_off(folder: Path) -> None:
    """Take the right to write from all that is in a folder."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def give_back(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_store_that_is_only_to_be_read_says_to_copy_it_and_the_copy_can_be_read(cli: Any, kind: str) -> None:
    kept = cli.folder / "kept"
    kept.mkdir()
    assert cli("run", "app.py:oracle", "--id", "r1", "--store", f"{kind}:kept/runs").returncode == 0
    close_off(kept)
    try:
        for command in (("ls",), ("show", "r1"), ("doctor",), ("run", "app.py:oracle", "--id", "r1")):
            done = typed(cli, *command, "--store", f"{kind}:kept/runs")
            assert done.returncode == 7, done
            (line,) = done.stderr.splitlines()
            assert f"{kept / 'runs'} is read-only here" in line
            assert "Copy the whole store" in line
    finally:
        give_back(kept)
    shutil.copytree(kept, cli.folder / "copy")
    assert typed(cli, "ls", "--store", f"{kind}:copy/runs").stdout.startswith("r1\tcompleted")


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_store_that_cannot_be_made_is_trouble_with_the_store(cli: Any, kind: str) -> None:
    kept = cli.folder / "kept"
    kept.mkdir(mode=0o500)
    try:
        done = typed(cli, "run", "app.py:oracle", "--store", f"{kind}:kept/runs")
    finally:
        give_back(kept)
    assert done.returncode == 7, done
    assert done.stderr.splitlines()[-1].startswith("holdfast: ")
    assert str(kept) in done.stderr


def test_a_file_of_who_is_alive_that_cannot_be_made_is_trouble_with_the_store(cli: Any) -> None:
    cli.run_r1()
    owners = cli.folder / ".holdfast" / "runs.db-owners"
    owners.chmod(0)
    done = typed(cli, "run", "app.py:oracle")
    assert done.returncode == 7, done
    assert "runs.db-owners is read-only here" in done.stderr


def test_an_error_of_anything_but_our_own_streams_is_none_of_the_output(monkeypatch: Any, capsys: Any) -> None:
    from holdfast.cli import app, reading

    for error in (OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")):

        def broken(*_: Any, error: OSError = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(reading, "BlockingRuntime", broken)
        assert app.execute(["ls"]) == 70
        assert "output" not in capsys.readouterr().err


@pytest.mark.parametrize("asked", [("--help",), ("ls", "-h"), ("--version",)])
def test_help_that_cannot_be_printed_is_trouble_with_the_output(cli: Any, asked: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "holdfast", *asked]
        done = subprocess.run(command, env=cli.environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        8,
        "holdfast: the output could not be written: No space left on device\n",
    )
