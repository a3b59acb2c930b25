"""An answer fits its question before it is taken, and the asking code gets the type that it declared."""

from __future__ import annotations

import enum
import json
import math
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Optional
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.core.answers import answer_value, fit_answer, schema_tree
from holdfast.errors import AnswerError, HoldfastError, UsageError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Review:
    approved: bool
    stars: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
    notes: list[str] = field(default_factory=list)


class Point(msgspec.Struct, rename="camel"):
    left_side: int
    when: datetime | None = None


@attrs.define
class Range:
    low: int
    high: int


class Item(pydantic.BaseModel):
    name: str
    price: Decimal = Decimal("1.5")
    inner: list[Item] = []


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    items: list[Item]
    due: date | None = None
    order_id: int = pydantic.Field(default=0, alias="orderId")

    @pydantic.field_validator("items")
    @classmethod
    def not_too_many(cls, items: list[Item]) -> list[Item]:
        if len(items) > 2:
            raise ValueError("too many items")
        return items


class Pair(NamedTuple):
    left: int
    right: str


ORDER = Order.model_validate({"items": [Item(name="a")], "due": date(2026, 1, 2), "orderId": 7})

# What is declared, an answer, and what that is as JSON. The code gets what was answered.
FITTING: list[tuple[Any, Any, Any]] = [
    (bool, True, True),
    (int, 3, 3),
    (int, 10**30, 10**30),
    (float, 2.5, 2.5),
    (str, "yes", "yes"),
    (type(None), None, None),
    (Any, {"a": [1]}, {"a": [1]}),
    (Literal["a", "b"], "b", "b"),
    (Optional[int], None, None),  # noqa: UP045
    (int | None, 3, 3),
    (list[str], ["a"], ["a"]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (dict[int, str], {1: "a"}, {"1": "a"}),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (set[int], {1}, [1]),
    (Colour, Colour.RED, "red"),
    (list[Colour], [Colour.RED], ["red"]),
    (date, date(2026, 1, 2), "2026-01-02"),
    (datetime, datetime(2026, 1, 2), "2026-01-02T00:00:00"),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    (timedelta, timedelta(minutes=90), "PT5400S"),
    (UUID, UUID(int=1), str(UUID(int=1))),
    (Decimal, Decimal("1.50"), "1.50"),
    (bytes, b"ab", "YWI="),
    (Review, Review(approved=True, stars=4), {"approved": True, "stars": 4, "notes": []}),
    (Point, Point(3), {"leftSide": 3, "when": None}),
    (Range, Range(1, 2), {"low": 1, "high": 2}),
    (Pair, Pair(1, "a"), [1, "a"]),
    (Item, Item(name="a", inner=[Item(name="b")]), None),
    (Order, ORDER, {"items": [{"name": "a", "price": "1.5", "inner": []}], "due": "2026-01-02", "orderId": 7}),
    (list[Order], [ORDER], None),
    (Order | None, ORDER, None),
    (dict[str, Order | None], {"a": ORDER, "b": None}, None),
]


def stored(declared: Any) -> Any:
    """The schema as another process reads it from the log."""
    return json.loads(json.dumps(schema_tree(declared), allow_nan=False))


@pytest.mark.parametrize(("declared", "answer", "plain"), FITTING, ids=lambda value: str(value)[:40])
def test_an_answer_of_the_declared_type_arrives_as_it_was(declared: Any, answer: Any, plain: Any) -> None:
    fitted = fit_answer(stored(declared), answer)
    if plain is not None:
        assert fitted == plain
    value = answer_value(declared, json.loads(json.dumps(fitted)))
    assert value == answer
    assert type(value) is type(answer)


@pytest.mark.parametrize(("declared", "answer", "plain"), FITTING, ids=lambda value: str(value)[:40])
def test_an_answer_in_plain_json_arrives_as_the_declared_type(declared: Any, answer: Any, plain: Any) -> None:
    plain = fit_answer(stored(declared), answer) if plain is None else plain
    assert fit_answer(stored(declared), plain) == plain
    assert answer_value(declared, plain) == answer


@pytest.mark.parametrize(
    ("declared", "answer", "path", "problem"),
    [
        (bool, "yes", "answer", "'yes' is not of type 'boolean'"),
        (bool, 1, "answer", "not of type 'boolean'"),
        (int, True, "answer", "not of type 'integer'"),
        (int, 5.0, "answer", "5.0 is not of type 'integer'"),
        (float, "1", "answer", "not of type 'number'"),
        (str, None, "answer", "not of type 'string'"),
        (Literal["a", "b"], "c", "answer", "'c' is not one of"),
        (Colour, "green", "answer", "'green' is not one of"),
        (int | None, "x", "answer", "'x'"),
        (list[str], ["a", 3], "answer[1]", "3 is not of type 'string'"),
        (Review, {"stars": 3}, "answer", "'approved' is a required property"),
        (Review, {"approved": True, "stars": 9}, "answer.stars", "9 is greater than the maximum of 5"),
        (Review, {"approved": True, "notes": ["a", None]}, "answer.notes[1]", "not of type 'string'"),
        (dict[str, int], {"a b": "c"}, "answer['a b']", "not of type 'integer'"),
        (Point, {"left_side": 3}, "answer", "'leftSide' is a required property"),
        (datetime, "tomorrow", "answer", "'tomorrow' is not a 'date-time'"),
        (date, "2026-13-01", "answer", "is not a 'date'"),
        (UUID, "17", "answer", "is not a 'uuid'"),
        (Order, {"items": [{"name": 3}]}, "answer.items[0].name", "not of type 'string'"),
        (list[Order], [{"items": []}, {}], "answer[1]", "'items' is a required property"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_answer_that_does_not_fit_is_refused_with_its_place(
    declared: Any, answer: Any, path: str, problem: str
) -> None:
    with pytest.raises(AnswerError) as caught:
        fit_answer(stored(declared), answer)
    assert caught.value.path == path
    assert problem in caught.value.problem
    assert isinstance(caught.value, UsageError)
    assert str(caught.value).startswith(f"{path}: ")
    assert "The question takes {" in str(caught.value)


def test_a_refusal_is_short_however_long_answer_and_schema_are() -> None:
    schema = stored(Literal[tuple(f"choice {i}" for i in range(1000))])  # type: ignore[misc]
    with pytest.raises(AnswerError) as caught:
        fit_answer(schema, "x" * 10_000)
    assert len(str(caught.value)) < 1000
    assert caught.value.problem.startswith("does not fit enum: ")


@pytest.mark.parametrize(
    "answer", [math.nan, [math.inf], "lone \udc80", object(), {"a": object()}, {None: 1}, 10**5000, socket], ids=type
)
def test_what_json_has_no_word_for_is_no_answer(answer: Any) -> None:
    with pytest.raises(AnswerError, match="is not JSON data"):
        fit_answer({}, answer)


def test_an_answer_that_holds_itself_is_refused() -> None:
    answer: list[Any] = []
    answer.append(answer)
    with pytest.raises(AnswerError, match="nested too deeply"):
        fit_answer({}, answer)


def test_without_a_schema_an_answer_is_taken_unchanged() -> None:
    answer = object()
    assert schema_tree(None) is None
    assert fit_answer(None, answer) is answer
    assert answer_value(None, answer) is answer


# JSON Schema as it is


def test_a_json_schema_is_stored_as_it_is_and_gives_plain_answers() -> None:
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    tree = schema_tree(schema)
    assert tree == schema
    assert tree is not schema
    assert fit_answer(tree, {"n": 3}) == {"n": 3}
    assert answer_value(schema, {"n": 3}) == {"n": 3}
    with pytest.raises(AnswerError, match=r"answer\.n: 'x' is not of type 'integer'"):
        fit_answer(tree, {"n": "x"})


def test_a_schema_of_an_older_draft_is_read_by_its_rules() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}, {"type": "string"}]}
    assert fit_answer(schema_tree(schema), [1, "a"]) == [1, "a"]
    with pytest.raises(AnswerError):
        fit_answer(schema_tree(schema), ["a", 1])


def test_a_schema_may_lead_back_to_itself_by_way_of_the_answer() -> None:
    schema = schema_tree({"type": "array", "items": {"$ref": "#"}})
    assert fit_answer(schema, [[], [[]]]) == [[], [[]]]
    with pytest.raises(AnswerError, match=r"answer\[0\]\[0\]"):
        fit_answer(schema, [[3]])


@pytest.mark.parametrize("keyword", ["const", "enum", "default", "examples"])
def test_data_in_a_schema_that_looks_like_a_reference_is_data(keyword: str) -> None:
    data = {"$ref": "http://example.org/x"}
    schema = {keyword: data if keyword in ("const", "default") else [data]}
    assert fit_answer(schema_tree(schema), data) == data


BROKEN: list[Any] = [
    {"type": "nonsense"},
    {"properties": 3},
    {"pattern": "("},
    {"multipleOf": 0},
    {"$ref": "#"},
    {"$ref": "#/$defs/missing"},
    {"$ref": "#/title", "title": "x"},
    {"$ref": "http://example.org/schema.json"},
    {"$ref": "file:///etc/passwd"},
    {"$id": "http://example.org/a", "$ref": "b"},
    {"$ref": "http://[::1"},
    {"$dynamicRef": "#nowhere"},
    {"$schema": 3},
    {"$ref": 3},
    {"allOf": [{"$ref": "#/allOf/0"}]},
]


@pytest.fixture
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise BaseException("the network was used")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("schema", BROKEN, ids=str)
def test_a_json_schema_that_could_never_be_applied_is_refused_when_it_is_asked_with(schema: Any) -> None:
    with pytest.raises(UsageError, match="cannot be a schema"):
        schema_tree(schema)


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize("schema", [*BROKEN, [], "x", True], ids=str)
def test_a_broken_schema_in_the_log_is_a_clear_error_and_fetches_nothing(schema: Any) -> None:
    with pytest.raises(AnswerError, match="its question is broken"):
        fit_answer(schema, "x")


@pytest.mark.usefixtures("_no_network")
def test_a_reference_that_only_some_answers_reach_is_refused_when_it_is_asked_with() -> None:
    schema = {"properties": {"a": {"items": {"$ref": "http://example.org/schema.json"}}}}
    with pytest.raises(UsageError, match=r"http://example\.org/schema\.json"):
        schema_tree(schema)
    assert fit_answer(schema, {"b": 1}) == {"b": 1}
    with pytest.raises(AnswerError, match="its question is broken"):
        fit_answer(schema, {"a": [1]})


def test_a_schema_or_an_answer_as_deep_as_the_stack_is_a_clear_error() -> None:
    schema: dict[str, Any] = {}
    answer: list[Any] = []
    for _ in range(5000):
        schema, answer = {"not": schema}, [answer]
    with pytest.raises(UsageError, match="nested too deeply"):
        schema_tree(schema)
    with pytest.raises(AnswerError, match="nested too deeply"):
        fit_answer(schema, 1)
    with pytest.raises(AnswerError, match="nested too deeply"):
        fit_answer({"items": {"$ref": "#"}}, answer)


REFERRING = st.sampled_from(["$ref", "$id", "$schema", "$defs", "$dynamicRef", "$anchor"])
CHECKING = st.sampled_from(["type", "pattern", "enum", "format", "multipleOf", "minimum", "required", "const"])
NESTING = st.sampled_from(["properties", "items", "anyOf", "allOf", "not", "if", "then", "uniqueItems"])
KEYWORDS = REFERRING | CHECKING | NESTING
WORDS = st.sampled_from(
    ["#", "#/$defs/a", "http://example.org/a", "urn:a", "integer", "object", "(", "date-time", "regex", "a", ""]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4))


@pytest.mark.usefixtures("_no_network")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(KEYWORDS, JSON, max_size=4), JSON)
@example({"$schema": "urn:a", "$ref": "urn:a"}, {})
def test_whatever_the_log_holds_an_answer_is_taken_or_refused(schema: Any, answer: Any) -> None:
    try:
        assert fit_answer(schema, answer) == answer
    except AnswerError:
        pass
    try:
        schema_tree(schema)
    except UsageError:
        pass


# What is no schema, and what only the type can say


class Strange:
    def __repr__(self) -> str:
        raise ValueError("no text")


class Mixed(enum.Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize(
    "schema",
    [3, "yes", True, object(), object, complex, socket.socket, list[complex], print, ..., [], Mixed, Strange()],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_with_what_is_accepted(schema: Any) -> None:
    with pytest.raises(UsageError, match="schema takes a type or annotation"):
        schema_tree(schema)


@pytest.mark.parametrize("data", [math.nan, object(), {1, 2}], ids=["nan", "object", "set"])
def test_a_schema_is_plain_json(data: Any) -> None:
    with pytest.raises(UsageError, match="cannot be a schema"):
        schema_tree({"const": data})


def test_two_types_of_one_name_are_refused() -> None:
    other = pydantic.create_model("Item", size=(int, ...), inner=(list["Item"], []))
    with pytest.raises(UsageError, match="have the name 'Item'"):
        schema_tree(tuple[Item, Order, other])


def test_what_only_the_type_can_say_is_told_to_the_asking_code() -> None:
    items = [{"name": "a"}] * 3
    plain = fit_answer(stored(list[Order]), [{"items": items}])
    with pytest.raises(AnswerError, match="too many items") as caught:
        answer_value(list[Order], plain)
    assert caught.value.path == "answer[0]"
    with pytest.raises(AnswerError) as caught:
        answer_value(Review, {"approved": True, "notes": ["a", 3]})
    assert caught.value.path == "answer.notes[1]"
    assert isinstance(caught.value, HoldfastError)
    plain = fit_answer(stored(Point), {"leftSide": 3, "when": "tomorrow"})
    with pytest.raises(AnswerError, match=r"answer\.when: Invalid RFC3339"):
        answer_value(Point, plain)
    with pytest.raises(AnswerError) as caught:
        answer_value(bytes, "not base64!")
    assert caught.value.path == "answer"


class Failing(msgspec.Struct):
    key: str

    def __post_init__(self) -> None:
        raise KeyError(self.key)


@pytest.mark.parametrize("declared", [socket.socket, Mixed, "int", 3, list["Missing"], Failing, Strange()], ids=type)  # noqa: F821
def test_a_type_that_cannot_take_any_answer_says_so(declared: Any) -> None:
    with pytest.raises(AnswerError, match=r"^answer: "):
        answer_value(declared, {"key": "a"})


def test_the_asking_code_gets_a_value_of_its_own() -> None:
    plain = {"approved": True, "notes": ["a"]}
    value = answer_value(Review, plain)
    value.notes.append("b")
    assert plain["notes"] == ["a"]


def test_loading_this_module_loads_neither_jsonschema_nor_pydantic() -> None:
    code = (
        "import sys, holdfast, holdfast.core.answers as a; a.answer_value(bool, True); a.schema_tree(bool); "
        "print([name for name in ('jsonschema', 'referencing', 'pydantic') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
