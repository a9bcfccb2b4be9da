"""The scheduler's side of node agents: they connect, and tell of their engines.

Reading order: listener (who connects, and what becomes of engines whose agent is gone),
session (one connection: the handshake, frames), gathering (many connections are read together),
attended (one engine of an agent: its beats become events, its blocks are compared with ours).

Everything happens in the loop's callbacks: a frame is taken as a whole before the next one.
An agent is an addition: without it, or after it, the collectors look at the engine.
"""

from pointsman.control.agents.listener import AgentListener, ListenerOptions

__all__ = ["AgentListener", "ListenerOptions"]
