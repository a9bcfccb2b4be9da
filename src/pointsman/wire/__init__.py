"""Pure codecs: bytes in, values out.

Reading order:

    endpoints       which path is which kind of request
    openai          what routing needs of a request body; the shape of an error answer
    routing_fields  what is read of one
    bodies          the fields that it reads, endpoint by endpoint
    canonical       a conversation as prefix-stable bytes
    messages        the messages and parts that it is made of
    multipart       the model named in a form
    priority        how urgent a request is, as heads and bodies say it
    usage           what an engine says it processed, in each dialect
    answers         the tokens that an answer took, and its name
    sse             usage, errors and end of a relayed event stream
    sse_events      what a single one of its events says
    engine_events   vLLM's KV-cache events
    engine_metrics  an engine's /metrics page
    control         frames between an agent and the scheduler
    control_auth    how both prove that they know the secret

Values are frozen and belong to whoever asked; `SseScanner`, `SequenceTracker` and `FrameReader`
belong to the one stream they follow. Input is never trusted: it is bounded, and what cannot be read
is an error with a name or a None, never a guess.

No async, socket, file, clock or log. Imports only `core`'s vocabulary.
"""
