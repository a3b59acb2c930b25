"""What would not come back exactly is refused by name before anything is written."""

from __future__ import annotations

import contextlib
import enum
import gc
import inspect
import re
import socket
import sys
import threading
from collections import ChainMap, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, NamedTuple
from zoneinfo import TZPATH, ZoneInfo

import attrs
import msgspec
import pydantic
import pytest

from holdfast.core.codec import MAX_DEPTH, Codec, dumps, loads
from holdfast.errors import NotLoadableError, NotStorableError


class MyInt(int):
    pass


class Shout(enum.StrEnum):
    HO = "ho"


class Reducible:
    def __reduce__(self) -> Any:
        raise AssertionError("it was asked to pickle itself")


class Liar:
    """Equals everything and has everything's hash."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("a")


class OddZone(tzinfo):
    pass


@dataclass
class Report:
    title: str = ""
    later: int = field(init=False)


@attrs.define(slots=False)
class Thing:
    x: int = 1


class Point(msgspec.Struct, dict=True):
    x: int = 1


class Model(pydantic.BaseModel):
    x: int = 1


class Pair(NamedTuple):
    x: int = 1


class SubPair(Pair):
    pass


class Slotted:
    __slots__ = ("__private", "extra")


@dataclass
class WithSlot(Slotted):
    x: int = 1


@dataclass
class DictLike(dict[str, int]):
    x: int = 1


@dataclass
class Failure(Exception):
    x: int = 1


def a_generator() -> Iterator[int]:
    yield 1


async def a_coroutine() -> None: ...


REFUSED: list[tuple[Any, str]] = [
    (lambda: 0, "function cannot be stored"),
    (print, "builtin_function_or_method cannot be stored"),
    (object(), "object cannot be stored"),
    (Reducible(), "Reducible cannot be stored"),
    (Liar(), "Liar cannot be stored"),
    (ValueError("x"), "ValueError cannot be stored"),
    (Failure(1), "Failure cannot be stored"),
    (bytearray(b"x"), "bytearray cannot be stored"),
    (1j, "complex cannot be stored"),
    (range(3), "range cannot be stored"),
    (re.compile("x"), "re.Pattern cannot be stored"),
    (threading.Lock(), "_thread.lock cannot be stored"),
    (a_generator(), "generator cannot be stored"),
    (int, "type cannot be stored"),
    (..., "ellipsis cannot be stored"),
    (deque([1]), "collections.deque cannot be stored"),
    (UserDict(), "collections.UserDict cannot be stored"),
    (ChainMap(), "collections.ChainMap cannot be stored"),
    (MyInt(1), "MyInt cannot be stored: it would lose its type. Convert it with int(...), or declare it."),
    (OrderedDict(), "OrderedDict cannot be stored: it would lose its type. Convert it with dict(...), or declare it."),
    (defaultdict(list), "defaultdict cannot be stored: it would lose its type. Convert it with dict(...)"),
    (Shout.HO, "Shout cannot be stored: it would lose its type. Convert it with str(...), or declare it."),
    (DictLike(), "DictLike cannot be stored: it would lose its type. Convert it with dict(...)"),
    (datetime(2024, 1, 1, tzinfo=OddZone()), "a tzinfo of type"),
    (type("Stamp", (datetime,), {})(2024, 1, 1), "Stamp cannot be stored"),
]


@pytest.mark.parametrize(("value", "problem"), REFUSED, ids=[problem[:40] for _, problem in REFUSED])
def test_a_value_that_cannot_be_stored_is_named_with_its_path(value: Any, problem: str) -> None:
    with pytest.raises(NotStorableError, match=re.escape(problem)) as caught:
        Codec().encode({"messages": [0, 1, 2, {"client": value}]})
    assert caught.value.path == "state.messages[3].client"
    assert str(caught.value).startswith("state.messages[3].client: ")


def test_a_socket_and_a_coroutine_are_refused() -> None:
    with socket.socket() as open_socket, pytest.raises(NotStorableError, match=r"state.s: socket\.socket cannot"):
        Codec().encode({"s": open_socket})
    with contextlib.closing(a_coroutine()) as coroutine, pytest.raises(NotStorableError, match="coroutine cannot"):
        Codec().encode([coroutine])


@pytest.mark.parametrize("value", [Report(), Thing(), Point(), Model(), Pair()], ids=lambda value: type(value).__name__)
def test_an_undeclared_type_is_refused_with_what_to_do(value: Any) -> None:
    name = type(value).__name__
    with pytest.raises(NotStorableError) as caught:
        Codec().encode([value])
    assert caught.value.path == "state[0]"
    assert f"Pass state={name} to the flow, annotate the step's return type, or call rt.register({name})" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "value", [Report(), Thing(), Point(), SubPair(), WithSlot()], ids=lambda value: type(value).__name__
)
def test_an_attribute_that_is_no_field_is_refused(value: Any) -> None:
    if isinstance(value, Report):
        value.later = 1
    codec = Codec([type(value)])
    codec.encode(value)
    if isinstance(value, WithSlot):
        value.extra = 1
    else:
        value.stray = 1
    with pytest.raises(
        NotStorableError, match=r"has an attribute '(stray|extra)', which is no field of .* would be lost"
    ):
        codec.encode({"r": value})


def test_an_attribute_of_a_kind_of_builtin_is_refused() -> None:
    codec = Codec([MyInt])
    value = MyInt(3)
    value.unit = "m"  # type: ignore[attr-defined]
    with pytest.raises(NotStorableError, match="has an attribute 'unit'"):
        codec.encode(value)


def test_a_field_that_was_never_set_is_refused() -> None:
    with pytest.raises(NotStorableError, match=r"state.r: its field 'later' has no value"):
        Codec([Report]).encode({"r": Report()})
    with pytest.raises(NotStorableError, match="its field 'x' has no value"):
        Codec([Thing]).encode(Thing.__new__(Thing))


def test_a_subclass_of_a_declared_type_needs_a_declaration_of_its_own() -> None:
    with pytest.raises(NotStorableError, match="SubPair cannot be stored"):
        Codec([Pair]).encode(SubPair(1))


def test_a_time_zone_read_from_a_file_has_no_name_to_store() -> None:
    for folder in TZPATH:
        with contextlib.suppress(OSError), open(f"{folder}/Europe/Berlin", "rb") as file:
            zone = ZoneInfo.from_file(file)
            with pytest.raises(NotStorableError, match="without a key"):
                Codec().encode(datetime(2024, 1, 1, tzinfo=zone))


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a b": {"": [object()]}}, "state['a b'][''][0]"),
        ({"x" * 100: object()}, f"state['{'x' * 40}'...]"),
        ({1: {None: {(1,): object()}}}, "state[1][None][a tuple]"),
        ({10**100: object()}, "state[a int]"),
        ((0, [object()]), "state[1][0]"),
        ({"s": {1, object()}}, "state.s[an item of the set]"),
        ({"d": {Liar(): 1}}, "state.d[a "),
        ({"é\ud800": object()}, r"state['\xe9\ud800']"),
    ],
)
def test_the_path_shows_the_way_to_the_problem(state: Any, path: str) -> None:
    with pytest.raises(NotStorableError) as caught:
        Codec().encode(state)
    assert caught.value.path.startswith(path)


def test_the_path_goes_on_from_where_the_caller_says() -> None:
    with pytest.raises(NotStorableError, match=r"^result\.x: object cannot be stored$"):
        Codec().encode({"x": object()}, path="result")


def test_a_key_that_cannot_be_stored_is_said_to_be_one() -> None:
    with pytest.raises(NotStorableError, match=r"its key: .*Liar cannot be stored"):
        Codec().encode({"d": {Liar(): 1}})


def test_a_field_that_cannot_be_stored_is_named() -> None:
    report = Report(title=object())  # type: ignore[arg-type]
    report.later = 1
    with pytest.raises(NotStorableError, match=r"^state\.report\.title: object cannot be stored$"):
        Codec([Report]).encode({"report": report})


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_up_to_the_limit_nesting_is_stored_and_loaded() -> None:
    codec = Codec()
    for value in (nested(MAX_DEPTH), {"a": nested(MAX_DEPTH - 1)}):
        assert codec.decode(loads(dumps(codec.encode(value)))) == value
    tuples: Any = 1
    for _ in range(MAX_DEPTH // 2):
        tuples = (tuples,)
    assert codec.decode(loads(dumps(codec.encode(tuples)))) == tuples
    dicts: Any = 1
    for level in range(MAX_DEPTH // 3):
        dicts = {level: dicts}
    assert codec.decode(loads(dumps(codec.encode(dicts)))) == dicts


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000, 100_000])
def test_deeper_nesting_is_refused(levels: int) -> None:
    value = nested(levels)
    with pytest.raises(NotStorableError, match=r"^state\[0\]\[0\]\[0\]\[0\] \.\.\. .*deeper than 400 levels"):
        Codec().encode(value)
    while type(value) is list:  # Or freeing it would take as many levels of C.
        value = value.pop()


def test_a_self_reference_is_refused() -> None:
    a_list: list[Any] = [1]
    a_list.append(a_list)
    a_dict: dict[str, Any] = {}
    a_dict["me"] = {"tuple": ([a_dict],)}
    report = Report()
    report.later = report  # type: ignore[assignment]
    for value in (a_list, a_dict, report):
        with pytest.raises(NotStorableError, match="refers to itself"):
            Codec([Report]).encode(value)
    a_list.clear()
    a_dict.clear()
    gc.collect()


def after_many_calls(act: Callable[[], Any], spare: int) -> Any:
    """What `act` gives where only so many calls are left."""

    def further(calls: int) -> Any:
        return further(calls - 1) if calls else act()

    return further(sys.getrecursionlimit() - len(inspect.stack()) - spare)


def test_where_the_stack_is_nearly_used_up_it_is_still_a_clear_error() -> None:
    codec, value = Codec(), nested(300)
    tree = codec.encode([value, (1,)])
    data = dumps(tree)
    acts: list[tuple[Callable[[], Any], type[Exception], str, Any]] = [
        (lambda: codec.encode(value), NotStorableError, "too deeply for the stack", value),
        (lambda: codec.decode(tree), NotLoadableError, "too deeply for the stack", [value, (1,)]),
        (lambda: dumps(tree), NotStorableError, "JSON", data),
        (lambda: loads(data), NotLoadableError, "JSON", tree),
    ]
    for act, error, said, result in acts:
        if sys.version_info < (3, 12) or act is acts[0][0]:
            with pytest.raises(error, match=said):
                after_many_calls(act, spare=200)
        else:  # what is not written in Python has a stack of its own
            with contextlib.suppress(error):
                found = after_many_calls(act, spare=200)
                assert dumps(codec.encode(found)) == dumps(codec.encode(result))


def test_what_can_be_stored_needs_no_more_calls_than_it_has_levels() -> None:
    codec = Codec([Report])
    value: Any = 1
    for level in range(MAX_DEPTH // 9):
        report = Report(title=value)
        report.later = 0
        value = [{"a": (report,)}, {level: 1}]
    value = [value] * 1
    tree = after_many_calls(lambda: codec.encode(value), spare=MAX_DEPTH + 20)
    assert after_many_calls(lambda: codec.decode(tree), spare=MAX_DEPTH + 20) == value


def test_a_refused_value_is_refused_against_an_earlier_tree_too() -> None:
    codec = Codec()
    tree = codec.encode({"a": [1, {"b": 2}]})
    for bad in ({"a": [1, {"b": Liar()}]}, {"a": [Liar(), {"b": 2}]}, {"a": Liar()}, {Liar(): [1, {"b": 2}]}, Liar()):
        with pytest.raises(NotStorableError):
            codec.encode(bad, like=tree)
