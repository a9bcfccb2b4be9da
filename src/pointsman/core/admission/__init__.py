"""May it come in, and may it come again?

`held` is the central queue: requests that no node can take at this moment. `retry_budget`
bounds second attempts of our own, `retry_guard` those of clients: with `remembered`, what was
turned away, `amplification`, what it cost, and `pressure`, how long the refused are told to wait.
They belong to the scheduler, which alone changes them.

`quota` are one API key's limits at work, on buckets of tokens (`token_bucket`); `key_rules`
are their values. They belong to the gateway, which knows the keys.
"""
