"""Live load client: sends a stream of requests to an OpenAI-compatible server and times them.

It shares the machine with what it measures, so it is protocol code on uvloop and httptools. It
has its own SSE reader on purpose: a measuring tool that shared the gateway's would share its bugs.

Reading order: runner (open and closed loop) · client (requests, connections, limits) · completion
(what one streamed answer says) · connection (HTTP/1.1) · sse (events from bytes).

The runner owns its tasks; the client owns the connections; a connection belongs to one exchange
at a time. Imports `traffic` only, never the gateway, the scheduler or the command line.
"""
