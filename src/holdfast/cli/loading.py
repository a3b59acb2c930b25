"""The flows of a program, from a file or a module that the user names. Nothing that a store names is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, UsageError
from holdfast.flows.base import Flow


class Program(NamedTuple):
    """A file or module with flows, by their variables' names."""

    target: str
    flows: dict[str, Flow[Any]]
    chosen: list[Flow[Any]]
    """Those that were asked for."""


def load_program(app: str) -> Program:
    """The program of FILE, FILE:FLOW, MODULE or MODULE:FLOW.

    Raises UsageError when it has no flow, not the one that is named, or cannot be loaded.
    """
    target, attribute = _split(app)
    module = _load(target)
    flows = {name: value for name, value in vars(module).items() if _is_flow(value)}
    known = ", ".join(flows) or "none"
    if not attribute:
        if not flows:
            raise UsageError(f"{target} has no flow at its top level, such as report = Pipeline('report', [...])")
        return Program(target, flows, list(flows.values()))
    if attribute not in flows:
        raise UsageError(f"{target} has no flow called {attribute!r} (its flows: {known})")
    return Program(target, flows, [flows[attribute]])


def only_flow(program: Program) -> Flow[Any]:
    """The one flow that was asked for, or the only one there is. Raises UsageError when there are several."""
    if len({id(flow) for flow in program.chosen}) > 1:
        known, example = ", ".join(program.flows), f"{program.target}:{next(iter(program.flows))}"
        raise UsageError(f"{program.target} has several flows ({known}). Name one: {example}")
    return program.chosen[0]


def _split(app: str) -> tuple[str, str]:
    if os.path.exists(app):
        return app, ""
    target, _, attribute = app.rpartition(":")
    return (target, attribute) if target else (app, "")


def _is_flow(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "advance") and hasattr(value, "next_step")


def _load(target: str) -> ModuleType:
    try:
        if target.endswith(".py") or os.sep in target:
            return _load_file(target)
        # As `python -m` does.
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(target)
    except HoldfastError as error:
        raise UsageError(f"{target} cannot be loaded: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"{target} cannot be loaded: {type(error).__name__}: {error}{_line(target, error)}") from error


def _load_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise UsageError("there is no such file")
    # As `python FILE` does, so that it finds the modules beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    name = os.path.splitext(os.path.basename(path))[0]
    if name in sys.modules:
        name = f"holdfast_app_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError("it is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _line(target: str, error: BaseException) -> str:
    """Where in the program it went wrong."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if os.path.basename(trace.tb_frame.f_code.co_filename) == os.path.basename(target):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"
