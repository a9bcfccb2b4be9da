"""Prompts as the token ids that engines see, so that an index fed by KV events finds them.

Reading order, along a prompt's way:

    service        a model's source, the wait for it, what is counted
    source         small prompts at once, others in `workers`
    engine_source  the engine's own /tokenize instead
    model          a body's route decides what is rendered
    chat           a body as the values that a template is given
    template       the chat template, sandboxed
    itemwise       does it write each message by itself?
    growing        then only what is new of a conversation is read, rendered and encoded
    encoder        text to ids, piece by piece; `pieces` remembers the pieces
    folder         a model's files
    fallback       why a prompt is known by its text after all
    encoded        what encoding gives

Token ids are told only where they are those that the engine computes; for everything else
there is a `Fallback`, and the text index. `service`, `source`, `workers` and `engine_source`
belong to the event loop; the rest runs in threads. `template`, `itemwise`, `growing` and
`encoder` need the extra `tokenizer`, and only `folder.load` imports them. Must not import gateway,
control or cli.
"""

from pointsman.engines.tokenizer.engine_source import EngineSource
from pointsman.engines.tokenizer.fallback import Fallback
from pointsman.engines.tokenizer.folder import Unusable, load, problem
from pointsman.engines.tokenizer.model import ModelTokenizer
from pointsman.engines.tokenizer.pieces import Pieces
from pointsman.engines.tokenizer.service import (
    TokenizerObserver,
    TokenizerService,
    TokenizerState,
)
from pointsman.engines.tokenizer.source import FolderSource, Source
from pointsman.engines.tokenizer.workers import Workers

__all__ = [
    "EngineSource",
    "Fallback",
    "FolderSource",
    "ModelTokenizer",
    "Pieces",
    "Source",
    "TokenizerObserver",
    "TokenizerService",
    "TokenizerState",
    "Unusable",
    "Workers",
    "load",
    "problem",
]
