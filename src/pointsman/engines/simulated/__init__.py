"""A simulated inference engine: vLLM's HTTP routes, metrics and KV events around a compute model.

Purpose: an engine that needs no GPU, for the demo, the tests and live benchmarks, exact in its
accounting (cached tokens, KV blocks, queue) and able to fail on command (`POST /simulate`).

Reading order: `server` (sockets, life cycle), `engine` (dispatch and answers), `author` (requests
to jobs), `streams` (tokens to a client), `rank` (what each has of its own behind one port),
`driver` (the compute model on the loop's clock), `bodies` (what clients send), `answers` (what all
answers share), `openai_chat`, `openai_completions`, `openai_responses` and `anthropic_messages`
(what clients get), `kept_responses` (what the Responses API remembers), `side_routes` (embeddings,
scores, tokenize, ...), `faults`, `metrics`, `kv_events`, `tokenizer`, `options`.

Ownership: everything lives on one event loop. `EngineDriver` owns the model; each HTTP handler owns
its jobs and aborts them on every way out. Must not import gateway, control, agent or cli.
"""

from pointsman.engines.simulated.options import EngineOptions
from pointsman.engines.simulated.server import PortInUseError, RunningEngine, serve, start
from pointsman.engines.simulated.tokenizer import count_tokens

__all__ = ["EngineOptions", "PortInUseError", "RunningEngine", "count_tokens", "serve", "start"]
