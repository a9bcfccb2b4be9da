"""Inference engines: what is known of real ones, and simulated ones.

Reading order: `compute_model` (pure: what an engine does and how long it takes), `simulated` (real
HTTP and ZMQ around that model), `adapters` (where real engines differ on the wire), `tokenizer`
(prompts as the token ids that engines see). The packages are independent of each other but for
`simulated`, which drives `compute_model`. Must not import gateway, control or cli.
"""
