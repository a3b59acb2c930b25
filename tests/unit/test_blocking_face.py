"""The blocking face is the async one without `async`; what the package exports; how light it is to import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CheckpointPolicy, Pipeline, blocking, errors, runtime
from holdfast.errors import HoldfastError, RunFailedError, RunPausedError, UsageError

DOUBLE = Pipeline("double", [lambda state: state * 2])


def methods(cls: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(cls, callable) if not name.startswith("_")}


def waits(name: str) -> str:
    """An annotation as the blocking face has it."""
    return name.replace("AsyncIterator", "Iterator")


@pytest.mark.parametrize("cls", ["Runtime", "RunHandle"])
def test_both_faces_have_the_same_methods(cls: str) -> None:
    assert set(methods(getattr(blocking, cls))) == set(methods(getattr(runtime, cls)))


PAIRS = [(cls, name) for cls in ("Runtime", "RunHandle") for name in methods(getattr(runtime, cls))]


@pytest.mark.parametrize(("cls", "name"), PAIRS)
def test_a_method_has_the_same_signature_and_documentation_on_both_faces(cls: str, name: str) -> None:
    there, here = getattr(getattr(runtime, cls), name), getattr(getattr(blocking, cls), name)
    assert here.__doc__ == there.__doc__
    assert here.__doc__
    there, here = inspect.signature(there), inspect.signature(here)
    assert list(here.parameters.values()) == list(there.parameters.values())
    assert here.return_annotation == waits(there.return_annotation)
    assert not inspect.iscoroutinefunction(getattr(getattr(blocking, cls), name))


def test_the_exported_names_are_sorted_and_complete() -> None:
    assert holdfast.__all__ == sorted(holdfast.__all__)
    tree = ast.parse(Path(holdfast.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    assert set(holdfast.__all__) == imported
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


def test_every_error_is_part_of_one_tree() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]
    assert all(issubclass(cls, HoldfastError) and cls.__name__.endswith("Error") for cls in classes)
    for cls in classes:
        assert cls.__name__ in (errors.__doc__ or "")


def test_importing_the_package_brings_no_heavy_companions() -> None:
    code = "import sys, holdfast; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    modules = set(ast.literal_eval(loaded.stdout))
    heavy = {"click", "rich", "pydantic", "attrs", "attr", "holdfast.cli", "pytest", "sqlite3", "numpy"}
    assert "holdfast.runtime" in modules
    assert modules & heavy == set()


def test_the_blocking_runtime_runs_lists_and_loads(tmp_path: Path) -> None:
    with blocking.Runtime(f"sqlite:{tmp_path / 'runs.db'}") as rt:
        assert rt.run(DOUBLE, 21, id="r1") == 42
        handle = rt.start(DOUBLE, "ab", id="r2", metadata={"caller": "u7"})
        assert handle.result() == "abab"
        assert handle.checkpoint() == "r2@2"
        assert sorted(run.id for run in rt.list()) == ["r1", "r2"]
        assert [point.state for point in rt.checkpoints("r1")] == [21, 42]
        assert [event.type for event in rt.events("r1", follow=True)][-1] == "completed"
        assert rt.fork("r1@1", id="r3").result() == 42
        assert rt.rewind("r1@1").result() == 42
        point = rt.load("r1@1")
        assert point is not None
        assert point.state == 21
        assert rt.get("r9") is None
        assert rt.recover() == []
        assert rt.interrupted() == []
        assert rt.prune() == 0
        rt.delete("r1")
        assert rt.get("r1") is None


def test_an_iterator_of_the_blocking_runtime_may_be_left_early() -> None:
    with blocking.Runtime("memory:") as rt:
        for number in range(5):
            rt.run(DOUBLE, number, id=f"r{number}")
        for _ in rt.list():
            break
        first = next(iter(rt.events("r1")))
        assert first.type == "created"
        assert len(list(rt.list())) == 5


def test_runs_go_on_while_a_blocking_program_does_something_else() -> None:
    inside, release = threading.Event(), threading.Event()

    def wait(state: Any) -> Any:
        inside.set()
        release.wait()
        return "waited"

    with blocking.Runtime("memory:") as rt:
        handle = rt.start(Pipeline("wait", [wait, lambda state: state + " and finished"]), {}, id="r1")
        inside.wait()
        handle.pause()
        release.set()
        with pytest.raises(RunPausedError):
            handle.result()
        handle.resume()
        assert handle.result() == "waited and finished"
        assert repr(handle) == "<run r1>"


def test_a_blocking_runtime_that_is_closed_says_so() -> None:
    rt = blocking.Runtime("memory:")
    with pytest.raises(UsageError, match="with Runtime"):
        rt.get("r1")
    with rt:
        assert rt.get("r1") is None
    rt.close()
    with pytest.raises(UsageError, match="with Runtime"):
        rt.run(DOUBLE, 1, id="r1")


def test_a_blocking_runtime_leaves_no_threads_behind() -> None:
    before = set(threading.enumerate())
    with blocking.Runtime("memory:") as rt:
        rt.run(DOUBLE, 1, id="r1")
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("holdfast")]
    for thread in left:
        thread.join(timeout=5)
    assert not any(thread.is_alive() for thread in left)


def test_run_starts_continues_and_reads_in_one_call(tmp_path: Path) -> None:
    calls: list[str] = []
    broken = [True]

    def first(state: list[str]) -> list[str]:
        calls.append("first")
        return [*state, "first"]

    def second(state: list[str]) -> list[str]:
        calls.append("second")
        if broken:
            raise LookupError("broken")
        return [*state, "second"]

    flow = Pipeline("script", [first, second], policy=CheckpointPolicy())
    where = f"sqlite:{tmp_path / 'runs.db'}"
    with pytest.raises(RunFailedError, match="broken"):
        holdfast.run(flow, [], id="r1", store=where)
    broken.clear()
    with blocking.Runtime(where) as rt:
        rt.register(flow)
        assert rt.resume("r1").result() == ["first", "second"]
    assert holdfast.run(flow, [], id="r1", store=where) == ["first", "second"]
    assert calls == ["first", "second", "second"]
    assert holdfast.run(DOUBLE, 4, store=None) == 8


def test_without_a_name_the_store_is_found_by_the_environment_or_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    assert holdfast.run(DOUBLE, 1, id="r1") == 2
    assert (tmp_path / ".holdfast" / "runs.db").exists()
    monkeypatch.setenv("HOLDFAST_STORE", f"file:{tmp_path / 'folder'}")
    assert holdfast.run(DOUBLE, 2, id="r1") == 4
    assert (tmp_path / "folder").is_dir()
