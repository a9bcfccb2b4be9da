"""The command line: the one place where the parts are wired together.

Reading order: main (the commands), serve, up, process (one process: scheduler, gateway and
admin plane together), config (every field), config_file (reading it strictly), keys, explain,
check, shared_options. Exit codes: 0 done, 1 problems found, 2 wrong usage or configuration.

Imports anything; nothing imports it. `main` imports a command's module only when it is
asked for, so that `pointsman --help` stays fast.
"""
