"""Benchmarks: `micro*.py` time one operation, `macro.py` measures whole gateways side by side.

Run them by `make bench-micro` and `make bench-macro`; README.md beside this file says how to
read the numbers. Nothing in `src` imports from here.
"""
