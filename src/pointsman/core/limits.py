"""Bounds that several parts of the core go by, and defaults of what people may set (`rules`), each
with its reason. What one part alone goes by is beside its code."""

from typing import Final

PRIORITY_HIGH: Final = 10
PRIORITY_NORMAL: Final = 0
PRIORITY_LOW: Final = -10
"""Larger is more urgent. The distance leaves room for integers between the names."""

PRIORITY_MAX: Final = 100
"""Priorities are clamped to ±100: beyond it an order is a mistake, not a wish."""

ATTEMPTS_MAX: Final = 2
"""Nodes that one request may fail on. A third try helps nobody: two failures of the same
request are more likely the request's fault than the nodes' (a poison request)."""

BUSY_ATTEMPTS_MAX: Final = 3
"""Nodes that may answer "busy" to one request before the client is told. Each is asked once."""

RECALLS_MAX: Final = 1
"""Times that one request may be taken back from a node before its first byte: whoever has waited
twice would wait longer than the others."""

RETRY_BUDGET_RATIO: Final = 0.2
"""Retries allowed as a share of first attempts: a cluster in trouble gets at most 1.2 times
its load (the value of Finagle's and Envoy's retry budgets)."""

RETRY_BUDGET_MIN: Final = 10
"""Retries in the budget at the start, so that a quiet cluster can retry at all."""

PREEMPTION_GAP: Final = 10
"""How much more urgent a request must be than one that gives way to it: the distance between
the names of priorities, so that small differences order a queue and move nobody."""

PREEMPTION_SCAN_MAX: Final = 64
"""Requests on a node that are looked at for one that may give way, the newest first."""

PREEMPTION_LOOK_MAX: Final = 1_024
"""Where answers under way may be broken off: how many requests are looked at for that, the newest
first."""

PREEMPTED_MAX: Final = 8
"""Requests that give way to one."""

BUSY_MEMORY_S: Final = 1.0
"""How long an engine that called itself busy is sent no more than it had; then a tenth more
each time, or one."""

QUEUE_LENGTH_MAX: Final = 4_096
"""Requests held centrally. At 10 ms of service a request this is 40 s of work for one node."""

HELD_SCAN_MAX: Final = 32
"""Held requests that are tried in vain before a scan stops: one completion frees room for a
few, and a scan is on the way of that completion."""

FLIGHTS_MAX: Final = 65_536
"""Requests placed and not settled: more than the gateway has connections."""

STARTING_S: Final = 60.0
"""How long an engine that has not described itself is called starting. Most have loaded their model
by then; of the others, and of those that never will, whoever waits is told where to look."""

RETRY_AFTER_MAX_S: Final = 60.0
"""The longest wait a client is told: a cluster changes in a minute."""

HOLD_S: Final = 30.0
"""A held request is refused after this long; a client that waits longer has given up."""

LEARN_INTERVAL_S: Final = 0.05
"""A node's speeds and hits are learned from at most one of its requests in this time: a change of
the engine shows within 30 samples, 1.5 s, and a sample costs about 50 µs."""

RESERVATION_S: Final = 30.0
RESERVATION_FACTOR: Final = 3.0
"""A request may be missing on its engine after this long, and not before so many times what was
foreseen for it: predictions are rarely off by more where they matter."""

RESERVATION_S_MAX: Final = 600.0
"""A reservation that nobody commits is given back: longer than the slowest first token allowed."""

LEASE_S_MAX: Final = 7_200.0
"""A lease that nobody releases is given back: longer than the longest request allowed."""

PREFILL_SHARE_MAX: Final = 0.75
"""The most that prefills are expected to interrupt decoding: four times its own time. Beyond it
the estimate would go to infinity, and a node that is this busy is shunned anyway."""

PREFILL_MEMORY_S: Final = 40.0
"""How long a prefill counts in the share of time that a node spends on them: a few times as
long as an answer, so that it is a forecast and not the last prefill's echo. 15 to 80 s serve
about as well."""

RETURN_MEMORY_S: Final = 120.0
"""How long a request that came for what a node holds counts in the rate at which such come: a few
turns of a conversation or an agent."""

TICK_S_MAX: Final = 1.0
"""Between ticks, at most: what expires without an event does so at least this exactly."""

TICK_S_MIN: Final = 0.002
"""Between ticks, at least: a deadline that stays due must not spin a shell's loop."""

BLOCK_TOKENS_MAX: Final = 1 << 16
KV_BLOCKS_MAX: Final = 1 << 32
"""What is believed of an engine's KV blocks: a page of 65,536 tokens, and more of them than any
memory holds."""

MODEL_CHARS_MAX: Final = 512
"""Of a model's name, asked for or served: it stands in keys, labels and answers."""

CONCURRENCY_MAX: Final = 100_000
"""What may be configured as a node's requests in flight: more than the gateway has."""

NODE_CONCURRENCY_MAX: Final = 256
"""Requests in flight on one node when its own limit is unknown: vLLM's default max_num_seqs."""

CERTAIN_SHARE: Final = 0.8
"""The share of a text's estimated tokens that it has for certain: nodes with less context are left
out. An estimate that is wrong must not keep a prompt from the only engine that is free."""

NODES_MAX: Final = 4_096
"""Nodes in a cluster: masks in the prefix index stay under 512 bytes."""

ROOM_WITHIN_S: Final = 0.25
"""A node has room while no more prefill work than this is ahead of a newcomer: less than one prompt
of 5,000 tokens. With 1 s, a fifth more is placed again in a simulated storm."""

HASTY_SHARE: Final = 0.75
"""Of its requests that were turned away, that must have come too early before a client counts as
hasty. One user in a hurry does not make all that share a key so, however often it comes."""

GROWTH: Final = 1.5
"""That a client's traffic may grow while it is told to wait."""

HOT_MEMORY_S: Final = 10.0
"""How long a request counts in its prefix's share of the traffic: a few times as long as a long
prefix takes to compute, so that a sudden one is met before its holders drown in it."""

HOT_HOLDERS_SLACK: Final = 1.5
"""Nodes that hold a hot prefix, over its share of the requests: as many as its share carry it only
if they do nothing else."""

FIRST_TOKEN_WEIGHT: Final = 5.0
"""What a second before the first token counts beside one of an answer (measured in
docs/POLICIES.md)."""

URGENT_IMPOSES: Final = 0.5
"""Of the delay that a request imposes on others, what counts if it is more urgent than usual: it
finds mostly such there whose delay matters less than its own."""

CLIENTS_REMEMBERED_MAX: Final = 4_096
"""Clients whose rate is known, 0.3 KiB each; the one that was silent for longest is forgotten."""

REFUSALS_REMEMBERED_MAX: Final = 32_768
"""Requests that were turned away and may come again, 0.4 KiB each: those of half a minute at
1,000 refusals a second. A storm beyond that is refused by the queue's bound."""

SESSIONS_MAX: Final = 100_000
"""Sessions remembered for affinity; the least recently used is forgotten first."""

CANDIDATES_MAX: Final = 16
"""Candidates that a cost policy looks at. Above it, the holders of the longest prefixes and
the least loaded of the rest stand for all. On 32 to 256 nodes under load, with hot prefixes
and without, mean latencies are within half a per cent of the full field's, p99 within 4 %;
a row takes 2 to 3 µs."""

DECISION_ROWS_MAX: Final = 8
"""Candidates kept in a decision record; a dry run shows all of them."""

PROBE_S: Final = 10.0
"""Between probes of a node that is well."""

PROBE_RETRY_S: Final = 1.0
"""Between probes of a node that is not well, or that something else speaks against: with three
failures in a row to take it out, it is out within 3 s."""

PROBE_FAILURES_MAX: Final = 3
"""Failed probes in a row before a node is out: one slow answer is not a death."""

PROBE_SUCCESSES_MIN: Final = 2
"""Good probes in a row before a node that was out is back: no flapping."""

REQUEST_FAILURES_MAX: Final = 3
"""Requests in a row that came to nothing on a node before it is out, probes or not."""

FAILURES_WITHIN_S: Final = 10.0
"""Failures in a row count as one trouble when they are this close together. Twice as many in a
row are one whatever the time between them: a quiet cluster has broken engines, too."""

SIGNAL_AGE_MAX_S: Final = 10.0
"""A polled signal older than this corrects nothing: own counts stand alone."""

RESTORE_SHARE_HOST: Final = 0.2
RESTORE_SHARE_STORAGE: Final = 0.5
"""What a token from a slower tier takes of its prefill time: llm-d counts a block in the host's
memory as 0.8 of one on the GPU. Copying 128 KiB a token (8B, 16 bits) over PCIe 4 takes 6 us,
from a fast disk 40 us, and computing it 60 to 100 us; waiting for the copy adds to that."""

INDEX_BYTES_MAX: Final = 512 * 1024 * 1024
"""The prefix index's hard cap: about 4 million blocks."""

TEXT_BLOCK_BYTES: Final = 512
"""Prompt bytes a block where no tokens are known: about 128 tokens, eight of vLLM's default
blocks. Smaller blocks cost time to hash and index, larger ones lose a longer tail of each
hit: on average half a block, 4 ms of prefill."""
