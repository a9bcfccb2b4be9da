"""Requests as a stream of values: traces read, workloads made, prompts written out.

One stream serves the live load generator and the simulator, so that both drive the very same
requests; what became of a request is one record type for both, so that one report reads both.

Reading order: request (what is sent) · outcome (what became of it) · slo (whether that was good) ·
trace (public trace formats) · arrivals (when) · generate, sessions and crowd (made-up workloads, in
lengths) · source (which of them, and how much of it) · mix (several of them at once) · ideal (the
best hit ratio that a trace allows) · quantile (one rule for all) · replayed (what a simulation
leaves behind) · text (block ids to prompt text).

Pure: no file, clock, socket, logging or global random. A reader takes lines that somebody else
opened; a generator takes a seeded `random.Random`. Imports nothing else of the package but
`decoding`.
"""
