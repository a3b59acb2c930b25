"""The types of a program come back as they were: with every field, and nothing run that made them."""

from __future__ import annotations

import enum
import subprocess
import sys
from collections import Counter, OrderedDict, namedtuple
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from exactly import exactly
from holdfast.core.codec import Codec, dumps, loads
from holdfast.errors import NotStorableError, UsageError

if TYPE_CHECKING:
    from nowhere import OnlyForTheTypeChecker  # type: ignore[import-not-found]

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1
    BLUE = (0, 0, 255)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    A = 1


@dataclass
class Report:
    title: str
    lines: list[str] = field(default_factory=list)

    @cached_property
    def length(self) -> int:
        return len(self.lines)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    y: tuple[int, ...] = ()


@dataclass
class Worked:
    """Its `__post_init__` would undo what happened since."""

    seed: InitVar[int]
    count: int = field(init=False)
    total: int = 0

    def __post_init__(self, seed: int) -> None:
        self.count = seed


@dataclass
class Box(Generic[T]):
    content: T


class Child(Report):
    """Not declared as a dataclass itself, and with nothing of its own."""


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Guarded(msgspec.Struct, frozen=True, kw_only=True, tag=True, rename="camel"):
    first_name: str
    marks: set[int] = msgspec.field(default_factory=set)

    def __post_init__(self) -> None:
        if self.first_name == "made later":
            raise AssertionError("__post_init__ ran")


class Open(msgspec.Struct, dict=True):
    x: int


class Model(pydantic.BaseModel):
    name: str
    inner: Report | None = None
    size: int = 3
    _secret: list[int] = pydantic.PrivateAttr(default_factory=list)
    _unset: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @cached_property
    def doubled(self) -> int:
        return self.size * 2


class Loose(pydantic.BaseModel, extra="allow", frozen=True):
    a: int = 1


class Numbers(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class Checked:
    n: int


@attrs.define
class Slotted:
    x: int
    _hidden: list[int] = attrs.field(factory=list)

    @cached_property
    def costly(self) -> int:
        return self.x * 2


@attrs.frozen(slots=False, cache_hash=True)
class Plain:
    x: int


class Pair(NamedTuple):
    left: int
    right: Report | None = None


Old = namedtuple("Old", "a b")


class Metres(float):
    pass


class Tags(list[str]):
    pass


class Name(str):
    __slots__ = ()


class Count(int):
    pass


class Blob(bytes):
    pass


class Row(tuple[int, ...]):
    __slots__ = ()


class Labels(set[str]):
    pass


class Fixed(frozenset[str]):
    pass


class Contrary(OrderedDict[str, int]):
    """Says of itself what is not so."""

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key, -value)

    def __getitem__(self, key: str) -> int:
        return 99

    def __iter__(self) -> Any:
        return iter(())


class Table(dict[str, int]):
    __iter__ = __getitem__ = keys = items = None  # type: ignore[assignment]


def worked() -> Worked:
    value = Worked(5)
    value.count, value.total = 9, 4
    return value


def secretive() -> Model:
    value = Model(name="a", inner=Report("r"))
    value._secret.append(7)
    return value


VALUES: list[Any] = [
    Colour.RED, Colour.CRIMSON, Colour.BLUE, Level.LOW, Word.YES,
    Right.READ, Right.READ | Right.WRITE, Right(0), Bits(9),
    Report("t", ["a", "b"]), Frozen(1, (2, 3)), worked(), Box(Report("in")), Child("c"), Checked(3),
    Point(1), Guarded(first_name="Ann", marks={2, 1}), Open(1),
    secretive(), Model.model_construct(name=7, inner="not validated"), Loose(b=[1]), Loose(a=2), Numbers([1, 2]),
    Slotted(1, [2]), Plain(1), Pair(1, Report("p")), Old(1, 2),
    Metres(-0.0), Tags(["a"]), Name("n"), OrderedDict(b=1, a=2), Counter("hello"),
    Count(-1), Count(2**70), Blob(b"x"), Row((1, 2)), Labels({"b", "a"}), Fixed({"a"}),
]  # fmt: skip
TYPES = {type(value) for value in VALUES}


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_of_a_declared_type_comes_back_exactly(value: Any) -> None:
    codec = Codec(TYPES)
    tree = codec.encode({"value": [value]})
    back = codec.decode(loads(dumps(tree)))["value"][0]
    assert exactly(back) == exactly(value)
    assert codec.encode({"value": [back]}, like=tree) is tree


def test_an_enum_member_comes_back_as_itself() -> None:
    codec = Codec(TYPES)
    assert codec.decode(codec.encode(Colour.CRIMSON)) is Colour.RED
    assert codec.encode(Colour.RED) == {"$": "enum", "type": "Colour", "v": "RED"}


def test_declared_types_can_be_keys_and_items_of_sets() -> None:
    codec = Codec(TYPES)
    value = {Colour.RED: 1, Frozen(1): 2, Word.YES: 3, "yes!": {Frozen(2), Level.LOW, Pair(1)}}
    assert exactly(codec.decode(loads(dumps(codec.encode(value))))) == exactly(value)


def test_an_object_on_disk_names_its_type_and_fields() -> None:
    tree = Codec([Model]).encode(secretive())
    assert dumps(tree).decode() == (
        '{"$":"object","type":"Model","v":{"name":"a","inner":{"$":"object","type":"Report","v":{"title":"r","lines":[]}},'
        '"size":3},"private":{"_secret":[7]},"set":["inner","name"]}'
    )


def test_a_type_called_like_a_mark_is_not_taken_for_one() -> None:
    tuple_like = dataclass(type("tuple", (), {"__annotations__": {"v": list}, "__module__": __name__}))
    codec = Codec([tuple_like])
    back = codec.decode(codec.encode([tuple_like([1]), (1,)]))  # type: ignore[call-arg]
    assert [type(item) for item in back] == [tuple_like, tuple]


def test_cached_properties_are_dropped_and_computed_again() -> None:
    codec = Codec(TYPES)
    report, slotted, model = Report("t", ["a"]), Slotted(3), Model(name="m")
    assert (report.length, slotted.costly, model.doubled) == (1, 6, 6)
    back = codec.decode(codec.encode([report, slotted, model]))
    assert exactly(back) == exactly([Report("t", ["a"]), Slotted(3), Model(name="m")])
    assert (back[0].length, back[1].costly, back[2].doubled) == (1, 6, 6)


def test_building_an_object_runs_neither_init_nor_post_init() -> None:
    value = Guarded(first_name="x")
    msgspec.structs.force_setattr(value, "first_name", "made later")
    codec = Codec([Guarded, Worked])
    assert codec.decode(codec.encode(value)).first_name == "made later"
    assert codec.decode(codec.encode(worked())).count == 9


def test_a_class_that_keeps_its_hash_can_be_hashed_again() -> None:
    codec = Codec([Plain])
    value = Plain(1)
    assert hash(codec.decode(codec.encode(value))) == hash(value)
    assert codec.decode(codec.encode({value})) == {value}


def test_the_arguments_of_a_generic_are_not_data() -> None:
    codec = Codec([Box])
    assert codec.decode(codec.encode(Box[int](1))) == Box(1)


def test_a_kind_of_dict_is_stored_as_it_is_whatever_it_says_of_itself() -> None:
    codec = Codec([Contrary, Table])
    contrary, table = codec.decode(codec.encode([Contrary(a=1, b=2), Table(a=1)]))
    assert type(contrary) is Contrary
    assert [(key, dict.__getitem__(contrary, key)) for key in OrderedDict.__iter__(contrary)] == [("a", -1), ("b", -2)]
    assert type(table) is Table
    assert dict.items(table) == {"a": 1}.items()


def test_the_order_of_an_ordered_dict_is_its_own() -> None:
    value = OrderedDict(a=1, b=2)
    value.move_to_end("a")
    codec = Codec([OrderedDict])
    assert list(codec.decode(codec.encode(value))) == ["b", "a"]


@dataclass
class Deep:
    reports: dict[str, list[Report | None]]
    colour: Annotated[Colour | None, "with a note"]
    word: Literal[Word.YES]
    missing: OnlyForTheTypeChecker
    points: tuple[Point, ...]
    other: Typed
    wrapped: Wrapped
    pair: Pair


class Typed(TypedDict):
    frozen: Frozen


Wrapped = NewType("Wrapped", Slotted)


def test_declaring_a_type_declares_those_of_its_fields() -> None:
    codec = Codec([Deep])
    for value in (Report("r"), Colour.RED, Word.YES, Point(1), Frozen(1), Slotted(1), Pair(1)):
        assert exactly(codec.decode(codec.encode(value))) == exactly(value)
    with pytest.raises(NotStorableError):
        codec.encode(Plain(1))


@pytest.mark.parametrize(
    "annotation",
    [
        Report,
        list[Report] | None,
        dict[str, tuple[Report, ...]],
        "list[Report] | None",
        Annotated[Report, []],
        Box[Report],
    ],
    ids=repr,
)
def test_types_are_found_in_annotations(annotation: Any) -> None:
    codec = Codec()
    if isinstance(annotation, str):
        annotation = eval(annotation)  # noqa: S307
    codec.register(annotation)
    assert codec.decode(codec.encode(Report("r"))) == Report("r")


@pytest.mark.parametrize(
    "nothing", [None, int, dict[str, Any], Any, T, "Report", object, type, 7, Typed, enum.Enum], ids=repr
)
def test_what_cannot_be_declared_is_passed_over(nothing: Any) -> None:
    assert Codec([nothing]).encode({"a": [1]}) == {"a": [1]}


def namesake(module: str, **fields: Any) -> type:
    return dataclass(type("Report", (), {"__annotations__": fields, "__module__": module}))


def test_two_types_of_one_name_are_refused() -> None:
    codec = Codec([Report])
    with pytest.raises(UsageError, match=r"elsewhere\.Report and .*Report have the same name.* Rename one"):
        codec.register(Point | namesake("elsewhere"))
    codec.register(Point)
    assert codec.decode(codec.encode(Point(1))) == Point(1)
    assert codec.decode(codec.encode(Report("r"))) == Report("r")


def test_a_namesake_that_only_a_field_mentions_is_refused_when_it_is_stored() -> None:
    other = namesake("elsewhere")
    holder = dataclass(
        type("Holder", (), {"__annotations__": {"report": other, "mine": Report}, "__module__": __name__})
    )
    codec = Codec([Report, holder])
    assert codec.encode(holder(None, Report("r"))) is not None  # type: ignore[call-arg]
    with pytest.raises(
        NotStorableError, match=r"state.report: elsewhere.Report cannot .*Its name is taken by .*Report"
    ):
        codec.encode(holder(other(), None))  # type: ignore[call-arg]


def test_a_class_whose_module_was_loaded_again_takes_the_place_of_the_older_one() -> None:
    older, newer = namesake("reloaded", a=int), namesake("reloaded", a=int)
    codec = Codec([older])
    codec.register(newer)
    assert type(codec.decode(codec.encode(newer(1)))) is newer  # type: ignore[call-arg]
    assert type(codec.decode(codec.encode(older(1)))) is newer  # type: ignore[call-arg]


def test_declaring_twice_equals_once() -> None:
    codec = Codec([Report, Report])
    codec.register(Report, list[Report])
    assert codec.decode(codec.encode(Report("r"))) == Report("r")


def test_neither_pydantic_nor_attrs_is_imported_by_the_package() -> None:
    code = "import sys, holdfast.core.codec; sys.exit(bool({'pydantic', 'attr', 'attrs'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
