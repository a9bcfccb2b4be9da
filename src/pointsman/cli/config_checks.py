"""What is wrong with one value of a configuration, where its type alone does not tell.

Each takes the text and answers with a sentence, empty if nothing is wrong. The fields of `config`
name theirs, so that all that can be seen in one value is found as the file is read.
"""

import ipaddress
import re

from pointsman.cli.messages import unknown_name
from pointsman.core.policies import catalog

HASH_PREFIX = "sha256:"
_HASH = re.compile(HASH_PREFIX + "[0-9a-fA-F]{64}")


def policy_problem(name: str) -> str:
    """Unless it is a policy there is."""
    return "" if name in catalog.names() else unknown_name(name, catalog.names())


def hash_problem(text: str) -> str:
    """Unless it is a key's hash. It may be a key, so it is not shown."""
    is_hash = _HASH.fullmatch(text) is not None
    return "" if is_hash else "it is no hash; `pointsman keys new NAME` prints one"


def plain_key_problem(key: str) -> str:
    """Unless somebody could send it."""
    return "" if key.strip() else "it is empty: nobody sends that"


def network_problem(text: str) -> str:
    """Unless it is an address, or a network like 10.0.0.0/8."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return f"'{text}' is no address, nor a network"
    return ""
