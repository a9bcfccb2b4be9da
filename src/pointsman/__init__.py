"""Pointsman: scheduler and gateway for clusters of LLM inference engines.

Read docs/ARCHITECTURE.md first: it follows one request through these packages.
"""

from importlib.util import find_spec

__version__ = "0.1.0"


def code_form() -> str:
    """Whether this installation's hot modules are "compiled" by mypyc or "interpreted"."""
    spec = find_spec("pointsman.core.scheduler")
    is_source = spec is not None and spec.origin is not None and spec.origin.endswith(".py")
    return "interpreted" if is_source else "compiled"
