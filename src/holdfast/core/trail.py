"""What is wrong with a value, and the way to where it lies.

The codec does not carry a path along while all is well: that would cost more than the work itself.
Whoever finds a problem raises `Problem`; every level adds its own step while the exception passes.
"""

from __future__ import annotations

_SHOWN = 40
_ENDS = 4


class Problem(Exception):
    """Something that cannot be stored or built, with the way to it, innermost step first."""

    def __init__(self, problem: str, typed: str | None = None) -> None:
        """`typed` says it of a tree that nobody has stored yet, because a person has just typed it."""
        super().__init__(problem)
        self.problem, self.typed = problem, typed or problem
        self.trail: list[str] = []

    def path(self, root: str) -> str:
        """The way from `root` to the problem, for example state.messages[3].client; long ones are cut."""
        steps = self.trail[::-1]
        if len(steps) > 2 * _ENDS + 1:
            steps = [*steps[:_ENDS], " ... ", *steps[-_ENDS:]]
        return root + "".join(steps)


def at_index(index: int) -> str:
    """The step to an item of a sequence."""
    return f"[{index}]"


def at_key(key: object) -> str:
    """The step to the value under a key. Never calls what the key's own class defines."""
    if type(key) is str and key.isidentifier() and len(key) <= _SHOWN:
        return f".{key}"
    return f"[{shown(key)}]"


def shown(value: object) -> str:
    """A value for a message: short, and without calling anything that its class defines."""
    if type(value) is str:
        return ascii(value) if len(value) <= _SHOWN else ascii(value[:_SHOWN]) + "..."
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) < 10**_SHOWN):
        return repr(value)
    return f"a {type_name(type(value))}"


def type_name(cls: type) -> str:
    """How a type is called in a message: httpx.Client, but plain dict."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
