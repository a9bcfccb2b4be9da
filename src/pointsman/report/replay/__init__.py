"""Reports of simulated runs: policies side by side, over scenarios and seeds.

Reading order: numbers (one run) · spread (means and confidence over seeds) · study (scenarios of
runs, and how policies compare there) · metrics (what is shown, by name and format) · subset (which
requests) · measure (one number of theirs) · expectation (bars on them) · verdict · classes (a run
by classes of requests) · timeline (and over time) · deviation (between nodes) · bars (rows of
tables) · wording · document (JSON) · table (terminal) · page (HTML) · plots and time_plots (SVG, by
matplotlib).

Pure but for matplotlib: no file, clock or socket. Imports `traffic`, the rest of `report`, and
names of the core's.
"""
