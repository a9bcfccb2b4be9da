"""The scheduler service: drives the pure core, feeds it from the engines, shows it to people.

Reading order: service (one `Scheduler` on the loop's thread, the gateway's `Placer`), watcher
(who is told of the nodes), counters, fleet (all nodes: health, facts, load and cache events of
each by a collector), listed (a configured engine, and its nodes), leaving (what an engine that is
to leave waits for), api and api_types (the admin
plane), agents/ (node agents that connect), doctor/ (examines a live cluster, in a process of its
own).

Ownership: the service alone steps the scheduler. `Fleet` owns a task for each node and what
runs below it; removing the node cancels it. Must not import another shell: gateway, agent,
sim, loadgen, cli.
"""
