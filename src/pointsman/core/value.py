"""Values that are made and read on each request's way: native classes where they are compiled.

A field of one is then read without a look-up by its name, which takes ten times as long of a
`msgspec.Struct`. What is decoded, encoded or seldom met is a `Struct`.
"""

from typing import Any, ClassVar, Self


class Value:  # noqa: PLW1641 - nobody has to hash one
    """Stays as it was made; equal to another of its class with equal fields.

    A class names its fields in `__match_args__`, in the order of its constructor's parameters,
    and assigns each there once, as `Final`.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def but(self, **changes: Any) -> Self:
        """The same with other fields; for where that is seldom: each field is looked up."""
        fields = {name: getattr(self, name) for name in self.__match_args__}
        return type(self)(**(fields | changes))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in self.__match_args__
        )

    def __repr__(self) -> str:
        shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__match_args__])
        return f"{type(self).__name__}({shown})"
