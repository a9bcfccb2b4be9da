"""The collectors: they ask an engine and tell what they learn. The scheduler's process uses them,
and so does an agent.

Reading order: node (one node's four loops), link (what they share: the incarnation, and the way to
the core), describer (who is it?), ranks (is it several?), prober (is it alive?), scraper (how busy
is it?), subscriber with event_stream, passage and event_socket (what does its cache hold?),
identity (is it still the same process?), client (an engine asked over HTTP, and failures by their
cause), cadence (how often), cancellation (when not to go on).

A node's loops run in one TaskGroup, which dies with the node. They hand events to a
`ports.NodeSink` and keep no state that the core has. An event carries the incarnation that was
current before the wait that led to it. So an answer of the old engine is never booked on its
successor. Must not import a shell.
"""
