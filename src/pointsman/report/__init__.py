"""Reports of runs: numbers, JSON, terminal tables and one HTML page; comparison of runs.

A run is what the live load generator or the simulator leaves behind: where, what, how, and one
record a request. Everything shown is computed from the records.

Reading order: run (the value and its JSON) · summary (numbers from records) · rows (how they
are worded) · table (terminal) · page (HTML) · markup (what all pages are made of) · plots (SVG) ·
drawing (by matplotlib, which is an optional extra imported only there); replay/ is the same for
simulated runs.

Pure but for matplotlib: no file, clock or socket. Imports `traffic`, and names of the core's.
"""
