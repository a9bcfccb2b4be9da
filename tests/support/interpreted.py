"""A pytest plugin (`-p tests.support.interpreted`): run the sources, whatever is compiled.

Coverage cannot see into compiled code, and debuggers step over it. Processes that tests start
run what users run.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


class SourceFinder(MetaPathFinder):
    """Finds the source of a module of ours where there is also a library."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("pointsman."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
            return None
        source = Path(spec.loader.path).with_name(fullname.rpartition(".")[2] + ".py")
        return spec_from_file_location(fullname, source)


sys.meta_path.insert(0, SourceFinder())
