"""May it come in, when is its turn, and may it come again?

Reading order: `admission` is what the scheduler asks. `gate` holds the watermarks to the `load` of
the nodes that could serve a request. `held` is the central queue: requests that no node can take
at this moment; who is next in it is said by `fair` or by `utility`, and how long that takes by
`waits`. `retry_guard` refuses first what comes back too early, with `remembered`, `pressure` and
`amplification` for it; `retry_budget` bounds second attempts. All of it belongs to the scheduler,
which alone changes it.

`quota` are one API key's limits at work, on buckets of tokens (`token_bucket`); `key_rules`
are their values. They belong to the gateway, which knows the keys.
"""
