"""What `bench/macro.py` is made of, in reading order.

    gateways  the gateways under test: how each is started, and found ready
    engines   the mock engines behind all of them, as fast as Python allows
    client    the raw closed-loop client in front of them
    cpu       CPU seconds and memory of a process tree, from /proc

The engines run in a process of their own; the client runs in the benchmark's.
"""
