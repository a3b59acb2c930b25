"""An exception comes back from the log as what it was, or as CallFailedError; nothing stored runs code."""

from __future__ import annotations

import asyncio
import builtins
import errno
import json
import subprocess
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.core.codec import Codec, Tree, dumps, loads
from holdfast.core.failures import describe, failure_of, failure_tree
from holdfast.engine.registry import Registry
from holdfast.errors import CallFailedError, HoldfastError, NotStorableError, RunNotFoundError, UsageError

CODEC = Codec()


class Refused(Exception):
    """Has attributes, and a constructor that must not run with stored data."""

    made = 0

    def __init__(self, code: int, *, why: str) -> None:
        type(self).made += 1
        self.code, self.why = code, why
        super().__init__(f"refused with {code}")


class Elaborate(Refused):
    def __new__(cls, *args: Any, **kwargs: Any) -> Elaborate:
        cls.made += 1
        return super().__new__(cls, *args)

    def __setattr__(self, name: str, value: object) -> None:
        type(self).made += 1
        super().__setattr__(name, value)


@attrs.define
class Slotted(Exception):
    code: int
    why: str = attrs.field(init=False)


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Unreachable(OSError):
    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(errno.EHOSTUNREACH, "no route", host)


class Both(ValueError, OSError):
    pass


class WithClient(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code, self.client, self.stream = code, object(), object()


CLASSES: dict[str, type[BaseException]] = {
    cls.__qualname__: cls
    for cls in (Refused, Elaborate, Slotted, Frozen, Unreachable, Both, WithClient, json.JSONDecodeError)
}


def through_the_log(error: BaseException, classes: dict[str, type[BaseException]] = CLASSES) -> Exception:
    return failure_of(loads(dumps(failure_tree(error, CODEC, classes))), CODEC, classes, call="fetch")


def raised_by(function: Any, *args: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


def same(back: BaseException, error: BaseException) -> bool:
    held = {name: value for name, value in back.__dict__.items() if name != "__notes__"}
    return type(back) is type(error) and back.args == error.args and str(back) == str(error) and held == error.__dict__


# As themselves


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a text"),
        ValueError(),
        ValueError("two", (2, {"a": b"bytes"}, None)),
        KeyError("key"),
        StopAsyncIteration(3),
        FileNotFoundError(2, "No such file", "a.txt"),
        OSError("only a text"),
        OSError(errno.EXDEV, "Cross-device", "a", None, "b"),
        TimeoutError("late"),
        UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte"),
        UnicodeEncodeError("ascii", "ä", 0, 1, "out of range"),
        SyntaxError("bad", ("a.py", 1, 2, "a b")),
        RecursionError("too deep"),
        UserWarning("warned"),
    ],
    ids=repr,
)
def test_an_exception_of_python_comes_back_as_itself(error: Exception) -> None:
    assert same(through_the_log(error), error)


def test_every_builtin_exception_that_takes_a_text_comes_back_as_itself() -> None:
    seen = set()
    for cls in vars(builtins).values():
        if isinstance(cls, type) and issubclass(cls, Exception):
            try:
                error = cls("text")
            except TypeError:
                continue
            assert same(through_the_log(error), error)
            seen.add(cls)
    assert len(seen) > 50


def test_what_python_keeps_beside_the_arguments_comes_back_too() -> None:
    missing = through_the_log(ModuleNotFoundError("no module", name="yaml", path="/x"))
    assert isinstance(missing, ModuleNotFoundError)
    assert (missing.name, missing.path) == ("yaml", "/x")
    nameless = through_the_log(raised_by(lambda: CODEC.nowhere))  # type: ignore[attr-defined]
    assert isinstance(nameless, AttributeError)
    assert nameless.name == "nowhere"
    opened = through_the_log(raised_by(open, "/nowhere/at/all"))
    assert isinstance(opened, FileNotFoundError)
    assert opened.filename == "/nowhere/at/all"
    assert str(opened) == "[Errno 2] No such file or directory: '/nowhere/at/all'"


def test_attributes_set_on_an_exception_come_back() -> None:
    error = ValueError("a text")
    error.retry_after = {"seconds": 1.5, "at": (1, 2)}  # type: ignore[attr-defined]
    error.__dict__["$"] = "tuple"
    assert same(through_the_log(error), error)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("a text"),
        NotStorableError("state.a", "is wrong"),
        RunNotFoundError("r1"),
        CallFailedError("fetch", "Odd", "Odd: text"),
        errors.StepTimeoutError("search", 1.5),
    ],
    ids=repr,
)
def test_an_exception_of_ours_comes_back_as_itself(error: Exception) -> None:
    assert same(through_the_log(error, {}), error)


@pytest.mark.parametrize(
    "error",
    [Refused(7, why="no"), Unreachable("example.org"), Both("two"), raised_by(json.loads, "{"), Frozen(3)],
    ids=lambda error: type(error).__name__,
)
def test_a_registered_exception_comes_back_as_itself(error: Exception) -> None:
    assert same(through_the_log(error), error)


def test_a_slot_comes_back_filled_or_empty_as_it_was() -> None:
    error = Slotted(3)
    back = through_the_log(error)
    assert isinstance(back, Slotted)
    assert back.code == 3
    assert not hasattr(back, "why")
    error.why = "because"
    assert through_the_log(error).why == "because"  # type: ignore[attr-defined]


def test_nothing_that_the_program_wrote_runs_with_stored_data() -> None:
    tree = failure_tree(Elaborate(7, why="no"), CODEC, CLASSES)
    Elaborate.made = 0
    back = failure_of(tree, CODEC, CLASSES)
    assert type(back) is Elaborate
    assert (Elaborate.made, back.code, back.why, back.args) == (0, 7, "no", ("refused with 7",))


def test_the_raised_one_says_that_it_was_found_in_the_log() -> None:
    error = ValueError("a text")
    error.add_note("an older note")
    for raised in (error, Refused(1, why="no"), Frozen(3), asyncio.CancelledError()):
        back = through_the_log(raised)
        shown = "".join(traceback.format_exception(back))
        assert "found in the log of the run" in shown
        assert "an older note" not in shown
        assert len(back.__notes__) == 1


def test_attributes_that_cannot_be_stored_are_left_out_and_named() -> None:
    back = through_the_log(WithClient(503))
    assert isinstance(back, WithClient)
    assert back.code == 503
    assert not hasattr(back, "client")
    assert back.__notes__[0].endswith("could not be stored of it: client, stream")


# As CallFailedError


def test_an_exception_that_nobody_registered_comes_back_as_call_failed_error() -> None:
    back = through_the_log(Refused(7, why="no"), {})
    assert isinstance(back, CallFailedError)
    assert isinstance(back, HoldfastError)
    assert (back.call, back.error_type, back.error) == ("fetch", "Refused", "Refused: refused with 7")
    assert str(back) == "call 'fetch' failed with Refused: refused with 7"
    assert "rt.register(Refused)" in back.__notes__[0]


def test_registering_it_later_brings_it_back_as_itself() -> None:
    tree = failure_tree(Refused(7, why="no"), CODEC)
    assert type(failure_of(tree, CODEC, {})) is CallFailedError
    assert type(failure_of(tree, CODEC, CLASSES)) is Refused


@pytest.mark.parametrize(
    "error",
    [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError("why"), GeneratorExit(), BaseException("odd")],
    ids=repr,
)
def test_what_is_no_exception_never_comes_back_as_itself(error: BaseException) -> None:
    classes = {type(error).__qualname__: type(error)}
    for known in ({}, classes):
        back = through_the_log(error, known)
        assert isinstance(back, CallFailedError)
        assert back.error_type == type(error).__name__
        assert "register" not in back.__notes__[0]


def test_a_group_comes_back_as_call_failed_error() -> None:
    error = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
    assert type(through_the_log(error)) is CallFailedError
    forged: Tree = {"kind": "builtin", "type": "ExceptionGroup", "text": "x", "args": ["two", []]}
    assert type(failure_of(forged, CODEC, {})) is CallFailedError


def test_arguments_that_cannot_be_stored_make_it_a_call_failed_error() -> None:
    back = through_the_log(ValueError(object))
    assert isinstance(back, CallFailedError)
    assert back.error_type == "ValueError"
    assert "register" not in back.__notes__[0]


def test_a_namesake_is_never_taken_for_another_class() -> None:
    ours = type("ValueError", (Exception,), {"__module__": "builtins"})
    assert type(through_the_log(ours("a"), {})) is CallFailedError
    assert type(through_the_log(ours("a"), {"ValueError": ours})) is ours
    assert type(through_the_log(ValueError("a"), {"ValueError": ours})) is ValueError
    theirs = type("Refused", (Exception,), {"__module__": "library"})
    assert type(through_the_log(theirs("a"), CLASSES)) is CallFailedError
    again = type("UsageError", (Exception,), {"__module__": "holdfast.errors"})
    assert type(through_the_log(again("a"), {})) is CallFailedError


def test_a_registered_class_may_move_to_another_module() -> None:
    tree = failure_tree(Refused(7, why="no"), CODEC, CLASSES)
    moved = type("Refused", (Exception,), {"__module__": "elsewhere"})
    assert type(failure_of(tree, CODEC, {"Refused": moved})) is moved


# Storing never fails


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Wrong(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # noqa: PLE0307


class Shouting(str):
    def __format__(self, spec: str) -> NoReturn:
        raise ValueError("not to be formatted")

    __bool__ = __len__ = __format__  # type: ignore[assignment]


class Odd(Exception):
    def __str__(self) -> str:
        return Shouting("text")


class Hiding(Exception):
    def __getattribute__(self, name: str) -> NoReturn:
        raise ValueError(name)


class Nameless(type):
    def __getattribute__(cls, name: str) -> NoReturn:
        raise ValueError(name)


class Masked(Exception, metaclass=Nameless):
    pass


class Homeless(Exception):
    __module__ = 3  # type: ignore[assignment]


class Circular(Exception):
    def __init__(self) -> None:
        super().__init__("round")
        self.me, self.rest = [self], [[]]
        self.rest[0] = self.rest


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Silent("a"), "Silent: (its text cannot be shown)"),
        (lambda: Leaving("a"), "Leaving: (its text cannot be shown)"),
        (lambda: Wrong("a"), "Wrong: (its text cannot be shown)"),
        (lambda: ValueError(10**5000), "ValueError: (its text cannot be shown)"),
        (lambda: Odd("a"), "Odd: text"),
        (lambda: Hiding("a"), "Hiding: a"),
        (lambda: Masked("a"), "Masked: a"),
        (lambda: Homeless("a"), "Homeless: a"),
        (Circular, "Circular: round"),
        (ValueError, "ValueError"),
        (lambda: ValueError("lone \udc80"), "ValueError: lone \\udc80"),
        (lambda: type("Sur", (Exception,), {"__qualname__": "S\udc80"})("a"), "Sur: a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_storing_takes_an_exception_as_it_is(make: Callable[[], Exception], text: str) -> None:
    error = make()
    assert describe(error) == text
    tree = loads(dumps(failure_tree(error, CODEC)))
    back = failure_of(tree, CODEC, {})
    if isinstance(back, CallFailedError):
        assert back.error in (text, "an exception of which nothing can be shown")
    else:
        assert type(back) is ValueError
        assert back.args == error.args


@pytest.mark.parametrize("text", ["x" * 10_000, "\udc80" * 10_000])
def test_a_long_text_is_cut(text: str) -> None:
    tree = failure_tree(ValueError(text), CODEC)
    assert isinstance(tree["text"], str)
    assert len(tree["text"]) == 4000
    assert failure_of(tree, CODEC, {}).args == (text,)


def test_attributes_with_names_that_are_no_names_are_stored_as_far_as_they_can_be() -> None:
    error = ValueError("a")
    error.__dict__.update({3: 1, "\udc80": object(), "kept": 2})  # type: ignore[dict-item]
    back = through_the_log(error)
    assert {**back.__dict__, "__notes__": ""} == {"kept": 2, "__notes__": ""}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_arguments_of_any_kind_come_back_exactly(value: Any) -> None:
    back = through_the_log(ValueError(value))
    assert type(back) is ValueError
    assert repr(back.args) == repr((value,))


# Loading never fails, and runs nothing

NAMES = st.sampled_from(
    [*CLASSES, *vars(builtins), *vars(errors), "os.system", "subprocess.Popen", "__import__", "a.b", "", "$"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | NAMES
KEYS = st.sampled_from(["$", "v", "type", "__notes__", "__dict__", "__class__", "args", "name", "errno"]) | st.text()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4))
FORGED = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["builtin", "holdfast", "registered", "other"]) | TREES,
        "type": NAMES | TREES,
        "text": st.text() | TREES,
        "args": st.lists(TREES, max_size=5) | TREES,
    },
    optional={
        "attrs": st.dictionaries(KEYS, TREES, max_size=4) | TREES,
        "module": st.sampled_from([__name__, "builtins"]) | TREES,
        "lost": TREES,
    },
)


@given(TREES | FORGED)
@example(None)
@example({"kind": "builtin", "type": "eval", "text": "x", "args": ["1"]})
@example({"kind": "builtin", "type": "SystemExit", "text": "x", "args": [1]})
@example({"kind": "builtin", "type": "ValueError", "text": "x", "args": [], "attrs": {"__notes__": 3, "add_note": 4}})
@example({"kind": "builtin", "type": "ValueError", "text": "x", "args": [], "attrs": {"__class__": 3}})
@example({"kind": "builtin", "type": "ValueError", "text": "x", "args": [], "lost": [None, {"a": 1}]})
@example({"kind": "builtin", "type": "UnicodeDecodeError", "text": "x", "args": ["a", {}, 1, 2, 3]})
def test_any_tree_comes_back_as_an_exception_that_can_be_raised_and_shown(tree: Any) -> None:
    back = failure_of(tree, CODEC, CLASSES, call="fetch")
    assert isinstance(back, Exception)
    assert not isinstance(back, BaseExceptionGroup)
    with pytest.raises(type(back)) as caught:
        raise back
    assert caught.value is back
    assert "found in the log" in "".join(traceback.format_exception(back))


@pytest.mark.parametrize("start", [-5, -(2**62), 2**62])
@pytest.mark.parametrize("name", ["UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError"])
def test_a_forged_position_does_not_make_python_read_past_a_text(name: str, start: int) -> None:
    text: Any = {"$": "bytes", "v": "YWJj"} if name == "UnicodeDecodeError" else "abc"
    args = [text, start, start + 1, "reason"] if "Translate" in name else ["utf-8", text, start, start + 1, "reason"]
    back = failure_of({"kind": "builtin", "type": name, "text": "told", "args": args}, CODEC, {})
    assert type(back) is CallFailedError
    assert back.error == "told"


def test_a_class_that_no_longer_fits_comes_back_as_call_failed_error() -> None:
    tree = failure_tree(Refused(7, why="no"), CODEC, CLASSES)
    changed = type("Refused", (UnicodeDecodeError,), {})
    assert type(failure_of(tree, CODEC, {"Refused": changed})) is CallFailedError


# Registering


def test_exception_classes_are_registered_beside_the_types_of_states() -> None:
    registry = Registry()
    registry.register(Refused, subprocess.CalledProcessError, KeyboardInterrupt)
    assert registry.failures["Refused"] is Refused
    with pytest.raises(NotStorableError):
        registry.codec("none").encode(Refused(1, why="no"))
    error = subprocess.CalledProcessError(1, ["ls"])
    back = through_the_log(error, registry.failures)
    assert same(back, error)


def test_two_exceptions_of_one_name_are_refused_and_a_reloaded_one_replaces_the_older() -> None:
    registry = Registry()
    registry.register(Refused)
    newer = type("Refused", (Exception,), {"__module__": __name__})
    registry.register(newer)
    assert registry.failures["Refused"] is newer
    with pytest.raises(UsageError, match="same name, 'Refused'"):
        registry.register(type("Refused", (Exception,), {"__module__": "elsewhere"}))
    assert registry.failures["Refused"] is newer
