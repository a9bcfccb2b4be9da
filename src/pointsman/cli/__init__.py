"""The command line: the one place where the parts are wired together.

Reading order, after `main` (the commands):

    serve, up                     a scheduler and a gateway; with simulated engines (children)
    process                       all of one process put together; wiring, node_watchers, tokenizers
    config, config_*              every field; config_file reads them strictly, with yaml_reader
    reload                        the file read again: config_change, engine_changes
    agent, engine                 a node agent (control_address); a simulated engine
    explain, doctor, check, keys  questions and small tools
    plan                          layers over servers: plan_file
    bench                         load for a live server: bench_session
    replay                        the same on virtual time: replay_plan (with scenario_*),
                                  replay_jobs, replay_sweep, replay_study
    shared_options, named_engines, sources, outputs, messages, signals
                                  what several commands have in common

Exit codes: 0 done, 1 problems found, 2 wrong usage or configuration.

Imports anything; nothing imports it. `main` imports a command's module only when it is
asked for, so that `pointsman --help` stays fast.
"""
