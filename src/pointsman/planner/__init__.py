"""Which server holds which layers, how many jobs run at once, and what response time to expect.

For models that one machine cannot hold, and for machines that differ: layers are laid out over
servers, servers are joined to chains, and the cache that is left is divided among the chains.
Engines that hold a whole model are the special case of chains of one server.

A chain has slots for jobs (requests, from prompt to last token), set by the memory for their
caches. Jobs on different slots do not slow each other down: where batches do slow down, give
fewer slots, or times measured at the batch that is meant.

The mathematics is that of Sun, He and Hou, "Serving Chain-structured Jobs with Large Memory
Footprints with Application to Large Foundation Model Serving" (arXiv 2604.14993), called "the
paper" here. What it calls a block is a layer here, since a block is a piece of a prompt elsewhere.

`pointsman plan` is its command.

Reading order: plan (the way in: the best layout for a rate, how many replicas) · placement (layers
to servers) · allocation (chains and their job slots) · bounds (the mean response time, from below
and above; tests/planner/queueing.py simulates it) · model (the nouns).

Pure: no file, clock, socket, logging or global random. Imports nothing else of the package.
"""
