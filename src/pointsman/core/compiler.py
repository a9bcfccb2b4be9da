"""What a class tells the compiler. Where sources run, nobody listens.

`acyclic`: its objects are in no cycle of references, so the garbage collector does not walk them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):
        return lambda owner: owner


__all__ = ["mypyc_attr"]
