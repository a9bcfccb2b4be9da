"""The HTTP data plane: protocol code of our own on uvloop and llhttp, driven by callbacks.

Reading order, along a request's way:

    server       listening, limits of the process, the sweep of deadlines, drain
    connection   a client's connection: one request after the other
    reader       bytes become requests, within bounds
    routes       the closed table of routes; answers that need no engine
    handler      one request: placer, attempts, settlement (drives `core.exchange`)
    arrival      what comes before the placer: body, key, token ids
    forwarded    whom a request came from, through proxies
    routing      head and body become what the scheduler is asked
    dry_run      the same for a request that is only to be explained
    kept         requests about a response that an engine keeps
    visit        what a request holds of its key, until its end
    keys         whose a request is, and what that key may do
    idempotency  one request at a time under a client's Idempotency-Key
    samples      requests with hot prefixes, kept to warm up nodes with
    replays      those requests sent to a node, to warm it up
    attempts     one try on one node
    upstream     a connection to an engine, and the pool of its node
    pools        all of them, and what is being dialled
    lookout      does anybody still listen where a request waits?
    answer       what the client gets, in the form that is still possible
    relay        an engine's bytes on their way: framing, usage, end
    chunks       chunked framing as it is written, and known when it comes in
    replies      answers of the gateway's own
    heads        heads read, checked and rebuilt
    record       what came of an exchange
    observer     what counters and logs are told
    shared       what all connections have in common
    options      what can be set

One thread owns it all, and the placer: there is no task and no await on a request's way
(dialling a fresh connection is the exception, owned by `pools.Pools`, and looking whether one could
be had, by `Lookout`). A `Handler` owns its engine connection until it releases or aborts it, and
settles with the placer exactly once. A `ClientConnection` owns its handler. Imports core, wire,
ports and, for the keys that engines ask for, `engines.adapters`; never another shell, and no
scheduler: placement is behind `ports.Placer`.
"""

from pointsman.gateway.observer import GatewayObserver
from pointsman.gateway.options import ApiKey, GatewayOptions, key_digest
from pointsman.gateway.samples import Samples
from pointsman.gateway.server import Gateway, GatewayState

__all__ = [
    "ApiKey",
    "Gateway",
    "GatewayObserver",
    "GatewayOptions",
    "GatewayState",
    "Samples",
    "key_digest",
]
