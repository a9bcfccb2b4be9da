"""The node agent: a process beside one engine or several, which tells the scheduler of them.

Reading order: agent (everything, wired), reporter (the connection: greeting, heartbeats,
comparisons), absence (what is said while nobody is there), rhythm (when is the next heartbeat due),
report (what there is to be told of one engine), front with queue (what the engine cannot start
waits here, or is handed back), machine with gpu and tcp (what is told of the machine itself),
supervisor (an engine that the agent starts and keeps running), options.

The collectors look at each engine as they do for the scheduler; here their events go to an
`EngineReport` and come out as frames of `wire/control`. What the scheduler is told last is
kept as a `BlockSet`, the same that it keeps of this node, so that both can be compared.
Everything belongs to one event loop. Must not import another shell: gateway, control, sim,
loadgen, cli.
"""

from pointsman.agent.agent import Agent
from pointsman.agent.front import FrontOptions
from pointsman.agent.options import AgentOptions, LocalEngine

__all__ = ["Agent", "AgentOptions", "FrontOptions", "LocalEngine"]
