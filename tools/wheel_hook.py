"""Put what is compiled into the wheel: `make wheel`.

`pip install .` gives the sources alone: one wheel for all machines, in seconds and without a
compiler. To compile there, pip's isolated build would first have to install mypy and all that
Pointsman itself needs, for their types.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledWheel(BuildHookInterface):  # type: ignore[misc]  # hatchling is not installed here
    """Active with POINTSMAN_COMPILED set, and not for editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not os.environ.get("POINTSMAN_COMPILED"):
            return
        sources = Path(self.root) / "src"
        libraries = sorted(sources.rglob("*.so"))
        if not libraries:
            raise FileNotFoundError("nothing is compiled: run `make compile`")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for library in libraries:
            build_data["force_include"][str(library)] = str(library.relative_to(sources))
