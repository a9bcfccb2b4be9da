"""Benchmarks: `micro_*.py` time one operation, `idle.py` and `macro.py` measure whole gateways.

Run them by `make bench`; README.md beside this file says how to read the numbers. Nothing in
`src` imports from here.
"""
