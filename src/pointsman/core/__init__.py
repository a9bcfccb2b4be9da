"""The pure core: everything that decides.

Reading order, top-down; a file imports only from files below it:

    exchange       one request's life: transition table
    scheduler      the spine: step(event, now_s) -> effects; _place is its centre
    state          all that the scheduler owns, and looks at it
    stats          what the scheduler has counted
    views          frozen pictures of nodes, for people and metrics
    audit          bookings against what engines report: what seems lost is given back
    records        the record of a decision
    membership     what shells report of nodes, applied
    warm_ups       nodes that compute the hottest prefixes before they get work
    router         candidates, their costs, the policy's choice: one pure question
    recalls        placed requests that are taken back before their first byte
    bookings       placed requests, and what each has of its node
    judge          what speaks for a node and what against it, beside its peers
    flight         one placed request: what was booked for it, what its end teaches
    admission/     may it come in? the gate, the queue, retries
    options        how the scheduler decides
    homes          which node made the response that a turn goes on from
    policies/      which node? one policy a file, and the catalog of them
    candidates     which nodes may serve it, and why the others may not
    cost           what would it cost there: one row a candidate, in seconds
    footprint      what a request holds of a node's memory
    ledger         KV-block leases: reserve, commit, release
    residency      what each node is believed to hold of a prompt
    tiers          what engines keep outside of the GPU's memory
    busy           engines that call themselves busy: how much they are sent
    hot_prefixes   prefixes that so many requests share that one node is not enough
    cluster        all nodes, and which of them serve a model
    node           one node by incarnation: facts, signals, own work
    condition      one node's health, counted
    warming        how a new node comes to its full share of work
    told           what an agent has told of a node's cache
    block_set      a node's blocks, with digests by which two copies are compared
    self_check     predicted against reported hits
    engine_blocks  an engine's opaque block hashes -> our own chain
    calibration    engine speeds and output lengths, learned online
    prefix         prefix index: block hash -> set of nodes
    pins           what running requests hold together of a node's memory
    placement      what a placement is made of: question, answer, bookings
    events         what step() is told and what it answers
    request_events  those of them that are about requests
    cache_events   what engines tell of their caches
    health         how a node is: transition table
    decision       the record of one decision
    exchange_record  what is counted and logged of a request when it is over
    row            one candidate: what a request would cost there
    request        what routing knows of one request
    blocks         chained block hashing over text or tokens
    scheme         how a prompt is cut into blocks
    errors         why a request was refused or broke, and what its client is told
    rules          what people may set
    limits         bounds that several parts go by, and defaults of the rules
    health_limits  those that health is judged by
    admission_rules  what admission goes by
    faded          counts that fade with time
    recent         what is kept of the latest
    value          values that are native classes where they are compiled
    ids            names and numbers that must not be mixed up
    compiler       what a class tells the compiler

No async, socket, file, clock, log, environment or global random: time comes in as float
seconds (`now_s`, from any origin in the past), randomness as a seeded generator. One thread owns
a `Scheduler`; nothing here is safe to share.
"""
