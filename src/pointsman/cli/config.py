"""The configuration: every field with its unit, default and what it trades.

The descriptions are the reference: `pointsman init` writes them into its example, and
docs/CONFIGURATION.md is made of them, so that they cannot differ. The larger sections have files
of their own (`config_*`). `config_file` reads a file into these structs.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pointsman.cli.config_admission import Admission
from pointsman.cli.config_agents import Agents
from pointsman.cli.config_bounds import Limits, Retries, RetryGuard, Timeouts
from pointsman.cli.config_checks import (
    hash_problem,
    network_problem,
    plain_key_problem,
    policy_problem,
)
from pointsman.cli.config_health import Health
from pointsman.cli.config_placing import HotPrefixes, MarginalCost, WarmUp
from pointsman.cli.shared_options import ADMIN_HOST, ADMIN_PORT
from pointsman.cli.yaml_reader import checked_by
from pointsman.control.listed import Ranks
from pointsman.core import limits
from pointsman.core.ids import NAME_PATTERN
from pointsman.core.limits import CONCURRENCY_MAX, MODEL_CHARS_MAX, NODES_MAX
from pointsman.core.policies import catalog
from pointsman.engines.adapters.address import kv_events_problem, one_spelling, url_problem
from pointsman.engines.adapters.keys import key_problem
from pointsman.telemetry.decisions import DECISIONS_MAX

__all__ = [
    "Admin",
    "Admission",
    "Agents",
    "Config",
    "Engine",
    "Health",
    "HotPrefixes",
    "Key",
    "Limits",
    "Listen",
    "Log",
    "MarginalCost",
    "Retries",
    "RetryGuard",
    "Timeouts",
    "WarmUp",
]

KEYS_MAX = 10_000
"""API keys in a file: some megabytes of memory, and a reload of a tenth of a second."""

MODELS_MAX = 256
"""Models with a tokenizer: each is tens of megabytes in memory."""

Port = Annotated[int, Meta(ge=0, le=65_535)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]


class Listen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where clients connect."""

    host: Annotated[
        str,
        Meta(
            description="Address to listen on. The default is this machine only; any other, like "
            "0.0.0.0, needs keys, or 'open: true'."
        ),
    ] = "127.0.0.1"
    port: Annotated[Port, Meta(description="TCP port of the OpenAI-compatible API.")] = 8080
    open: Annotated[
        bool,
        Meta(
            description="Listen on other machines' behalf without keys: whoever reaches the port "
            "can use the engines. For networks where something else keeps strangers out."
        ),
    ] = False
    api_keys: Annotated[
        tuple[Annotated[str, Meta(extra=checked_by(plain_key_problem))], ...],
        Meta(
            description="Keys without limits, as they are sent: 'Authorization: Bearer KEY'. To "
            'keep them out of the file, write ["${VARIABLE}"], in quotes. Keys with names, '
            "limits and hashes are under 'keys'."
        ),
    ] = ()
    forward_authorization: Annotated[
        bool | None,
        Meta(
            description="Hand the client's authorization and x-api-key headers to the engines. "
            "Default: only while there are no keys here, since they would be told ours."
        ),
    ] = None
    trusted_proxies: Annotated[
        tuple[Annotated[str, Meta(extra=checked_by(network_problem))], ...],
        Meta(
            description="Addresses or networks (10.0.0.0/8) of proxies in front, whose "
            "X-Forwarded-For tells who sends a request. Without, all that come through a proxy "
            "are one client where they have no keys. Never trust what clients can reach from."
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(description="Origins of browser applications that may call the API; '*' is any."),
    ] = ()
    reply_headers: Annotated[
        bool,
        Meta(
            description="Tell clients the node and the policy in x-pointsman-node and "
            "x-pointsman-policy. Helps debugging, shows the names of your engines."
        ),
    ] = False
    keep_alive_comments_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds of silence in a stream after which ': keep-alive' is sent, for "
            "proxies that cut idle connections; 0 is off. A comment commits the answer to "
            "status 200 before the engine has spoken.",
        ),
    ] = 0.0

    def __repr__(self) -> str:
        """Without the keys."""
        return f"<Listen {self.host}:{self.port}>"


class Admin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where metrics, state and steering are served."""

    host: Annotated[
        str,
        Meta(
            description="Address of the admin plane. It has no keys: whoever reaches it can "
            "drain nodes, so it stays on this machine by default. There it answers to localhost "
            "and addresses only: a web page could have led any other name to it."
        ),
    ] = ADMIN_HOST
    port: Annotated[Port, Meta(description="TCP port of the admin plane.")] = ADMIN_PORT


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An inference engine to send requests to."""

    url: Annotated[
        str,
        Meta(
            description="Its address, like http://10.0.0.7:8000, no path; http://10.0.0.7:8000#0 "
            "is one data-parallel rank there.",
            extra=checked_by(url_problem),
        ),
    ]
    name: Annotated[
        Name | None,
        Meta(description="What headers, metrics and logs call it. Default: engine-1, engine-2 …"),
    ] = None
    models: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=MODEL_CHARS_MAX)], ...],
        Meta(description="Models to send it. Default: whatever its /v1/models lists."),
    ] = ()
    pool: Annotated[
        str, Meta(description="Pool that x-pointsman-pool selects, for example long-context.")
    ] = "default"
    zone: Annotated[str, Meta(description="Zone or region, a hard constraint if asked for.")] = ""
    labels: Annotated[
        dict[str, str], Meta(description="Labels that a request may require, name: value.")
    ] = {}
    concurrency_max: Annotated[
        Annotated[int, Meta(ge=1, le=CONCURRENCY_MAX)] | None,
        Meta(
            description="Requests in flight there at once. Default: 256, vLLM's max_num_seqs. "
            "Higher only moves the queue into the engine, where nothing can re-order it. What an "
            "engine itself says that it runs at once (llama.cpp does) is never exceeded."
        ),
    ] = None
    kv_events: Annotated[
        str,
        Meta(
            description="Where it publishes KV-cache events: auto asks the engine, off trusts "
            "our own routing history, tcp://HOST:PORT names it. Exact knowledge of the cache "
            "costs some CPU for each block the engine stores.",
            extra=checked_by(kv_events_problem),
        ),
    ] = "auto"
    api_key: Annotated[
        str,
        Meta(
            description="The key that it asks for (vLLM's --api-key), if any: in requests, probes "
            "and warm-ups, in the place of what clients sent. To keep it out of the file, write "
            '"${VARIABLE}", in quotes.',
            extra=checked_by(key_problem),
        ),
    ] = ""
    ranks: Annotated[
        Ranks,
        Meta(
            description="Data-parallel ranks behind the address: auto asks the engine, and each is "
            "a node, NAME-rank-0, NAME-rank-1 …, with a cache and limits of its own; off takes "
            "the server as one, whose cache is known by history only."
        ),
    ] = "auto"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "url", one_spelling(self.url))

    def __repr__(self) -> str:
        """Without the key."""
        return f"<Engine {self.name or self.url}>"


Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Priority = Literal["high", "normal", "low"] | Annotated[int, Meta(ge=-100, le=100)]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An API key and what it may do."""

    name: Annotated[Name, Meta(description="Whose it is; the tenant of its requests.")]
    hash: Annotated[
        str,
        Meta(
            description="What `pointsman keys new NAME` prints beside the key: sha256:…",
            extra=checked_by(hash_problem),
        ),
    ]
    models: Annotated[
        tuple[str, ...], Meta(description="Models it may use, and see. Default: all.")
    ] = ()
    priority_max: Annotated[
        Priority,
        Meta(
            description="The most urgent its requests may be: high, normal, low or an integer, "
            "larger is more urgent. What asks for more is lowered to it, for engines that go by "
            "priorities, too; a body whose own 'priority' is above it is refused, since bodies "
            "go on as they are."
        ),
    ] = limits.PRIORITY_MAX
    requests_per_minute: Annotated[
        Positive | None,
        Meta(description="Requests it may send a minute, in a burst or one by one; more get 429."),
    ] = None
    tokens_per_minute: Annotated[
        Positive | None,
        Meta(
            description="Tokens a minute, of prompts and answers. A prompt's are reserved by "
            "estimate, and corrected when the engine has counted: a long answer is paid off "
            "before the next request."
        ),
    ] = None
    concurrency_max: Annotated[
        Positive | None, Meta(description="Requests in flight at once; more get 429.")
    ] = None
    names_tenants: Annotated[
        bool,
        Meta(
            description="Its requests may name their tenant in x-pointsman-tenant: for a gateway "
            "in front of this one."
        ),
    ] = False


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model whose prompts are to be known as the token ids that engines see."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MODEL_CHARS_MAX,
            description="The model as clients name it. Its adapters come along.",
        ),
    ]
    tokenizer: Annotated[
        str,
        Meta(
            min_length=1,
            description="A folder on this machine as the Hugging Face hub has it: tokenizer.json, "
            "tokenizer_config.json, chat_template.jinja; needs pip install 'pointsman[tokenizer]'. "
            "Or engine: ask the engine's own /tokenize, exact for a round trip more. Token ids "
            "find all that an engine's KV events tell of; text finds what went through here.",
        ),
    ]
    chat_template: Annotated[
        str,
        Meta(
            description="A file that replaces the folder's chat template, as vLLM's "
            "--chat-template does; none if there are no chats. Default: the folder's own."
        ),
    ] = ""


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is written down."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least level of messages on stderr: debug, info, warning or error."),
    ] = "info"
    access: Annotated[
        str,
        Meta(
            description="One JSON line for each request: stdout, none, or a file's path. "
            "Costs a few microseconds a request; never holds prompts, answers or keys. A file is "
            "only added to: rotate it with copytruncate."
        ),
    ] = "stdout"
    decisions: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Decisions kept for `pointsman explain`, about 2 KiB each.",
        ),
    ] = DECISIONS_MAX


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole process."""

    listen: Annotated[Listen, Meta(description="Where clients connect.")] = Listen()
    admin: Annotated[Admin, Meta(description="Metrics, state and steering.")] = Admin()
    policy: Annotated[
        str,
        Meta(
            description="How a node is chosen; `pointsman serve --help` lists the names. "
            "Can be changed while running: PUT /pointsman/v1/policy.",
            extra=checked_by(policy_problem),
        ),
    ] = catalog.DEFAULT
    engines: Annotated[
        tuple[Engine, ...],
        Meta(max_length=NODES_MAX, description="The inference engines."),
    ] = ()
    keys: Annotated[
        tuple[Key, ...],
        Meta(max_length=KEYS_MAX, description="API keys; without any, everyone is let in."),
    ] = ()
    models: Annotated[
        tuple[Model, ...],
        Meta(
            max_length=MODELS_MAX,
            description="Tokenizers. A model that is not named here is known by its text.",
        ),
    ] = ()
    timeouts: Annotated[Timeouts, Meta(description="How long each stage may take.")] = Timeouts()
    limits: Annotated[Limits, Meta(description="Bounds on memory.")] = Limits()
    health: Annotated[
        Health, Meta(description="When an engine is out of service, and how often it is looked at.")
    ] = Health()
    retries: Annotated[
        Retries, Meta(description="How often a request that failed is tried on another engine.")
    ] = Retries()
    warm_up: Annotated[
        WarmUp, Meta(description="What engines compute before they get requests.")
    ] = WarmUp()
    admission: Annotated[
        Admission, Meta(description="Who comes in while the cluster fills up, and who waits how.")
    ] = Admission()
    retry_guard: Annotated[
        RetryGuard, Meta(description="Clients that retry without waiting, while nothing has room.")
    ] = RetryGuard()
    hot_prefixes: Annotated[
        HotPrefixes, Meta(description="Prompt beginnings that are too much for one engine.")
    ] = HotPrefixes()
    marginal_cost: Annotated[
        MarginalCost, Meta(description="Weights of the policy of that name.")
    ] = MarginalCost()
    agents: Annotated[Agents, Meta(description="Node agents.")] = Agents()
    log: Annotated[Log, Meta(description="What is written down.")] = Log()
