"""A cluster on virtual time: the real scheduler before simulated engines, without a clock.

Must not import other shells.
"""
