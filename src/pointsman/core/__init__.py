"""The pure core: everything that decides.

Reading order, top-down; a file imports only from files below it:

    exchange    one request's life: transition table
    scheduler   the spine: step(event, now_s) -> effects; place() is its centre
    explain     the same decision once more, changing nothing
    admission/  may it come in? queue of held requests, retry budget
    policies/   which node? one policy a file, and the catalog of them
    candidates  which nodes may serve it, and why the others may not
    cost        what would it cost there: one row a candidate, in seconds
    cluster     nodes by incarnation: health, facts, signals, own in-flight counts
    calibration engine speeds and output lengths, learned online
    ledger      KV-block leases: reserve, commit, release, expiry
    engine_blocks  an engine's opaque block hashes -> our own chain
    prefix      prefix index: block hash -> set of nodes
    events      what step() is told and what it answers
    decision    the record of one decision
    request     what routing knows of one request
    blocks      chained block hashing over text or tokens
    errors      why a request was refused or broke, and what its client is told
    limits      every bound, with its reason
    ids         names and numbers that must not be mixed up

No async, socket, file, clock, log, environment or global random: time comes in as float
seconds (`now_s`, any monotonic origin), randomness as a seeded generator. One thread owns
a `Scheduler`; nothing here is safe to share.
"""
