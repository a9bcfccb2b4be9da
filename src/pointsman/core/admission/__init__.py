"""Decides whether a request may come in, when it is its turn, and whether it may come again.

Reading order: `admission` is what the scheduler asks. `gate` compares the `load` of the nodes that
could serve a request with the watermarks. `held` is the central queue, of requests that no node can
take at this moment; `fair` or `utility` says who is next in it, and `waits` how long that takes.
`retry_guard` comes before all of these: it refuses what comes back too early, with the help of
`remembered`, `pressure` and `amplification`. `retry_budget` bounds second attempts. All of it
belongs to the scheduler, which alone changes it.

`quota` applies one API key's limits, with buckets of tokens (`token_bucket`); `key_rules` has their
values. These belong to the gateway, which knows the keys.
"""
