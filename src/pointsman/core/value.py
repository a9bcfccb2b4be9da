"""Values that are made and read on each request's way: native classes where they are compiled.

A field of one is then read without a look-up by its name, which takes ten times as long of a
`msgspec.Struct`. What is decoded, encoded or seldom met is a `Struct`.
"""

from typing import Any, ClassVar, Self

from pointsman.core.compiler import mypyc_attr


@mypyc_attr(acyclic=True)
class Value:  # noqa: PLW1641 - nobody has to hash one
    """Stays as it was made; equal to another of its class with equal fields.

    A class names its fields in `__match_args__`, in the order of its constructor's parameters,
    and assigns each there once, as `Final`. (Only a `Row` has fields that are written until
    one is chosen.)
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def but(self, **changes: Any) -> Self:
        """The same with other fields; for where that is seldom: each field is looked up."""
        return type(self)(**(self.fields() | changes))

    def fields(self) -> dict[str, Any]:
        """All of them by name."""
        return {name: getattr(self, name) for name in self.__match_args__}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in self.__match_args__
        )

    def __repr__(self) -> str:
        shown = ", ".join([f"{name}={value!r}" for name, value in self.fields().items()])
        return f"{type(self).__name__}({shown})"
