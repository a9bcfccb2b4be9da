"""Pointsman: scheduler and gateway for clusters of LLM inference engines.

Read docs/ARCHITECTURE.md first: it follows one request through these packages.
"""

__version__ = "0.1.0"
