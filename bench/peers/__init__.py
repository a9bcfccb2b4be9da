"""What `bench/macro.py` and `bench/live.py` are made of, in reading order.

    gateways  the gateways under test: how each is started, and found ready
    engines   the mock engines behind all of them, as fast as Python allows
    client    the raw closed-loop client in front of them
    fleet     simulated engines, for what caches and queues do behind a gateway
    cpu       CPU seconds and memory of a process tree, from /proc

The engines run in processes of their own; the client runs in the benchmark's.
"""
