"""A model's folder on this machine: tokenizer.json, and the chat template beside it.

The files are those of the Hugging Face hub, read as transformers reads them. `load` is the
only place that imports what the extra `tokenizer` brings.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from pointsman.decoding import Undecodable, decoded
from pointsman.engines.tokenizer.model import ModelTokenizer, Templates
from pointsman.engines.tokenizer.pieces import Pieces

PACKAGES = ("jinja2", "tokenizers")
REMEDY = "pip install 'pointsman[tokenizer]'"

_SPECIAL_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    "additional_special_tokens",
)
_OWN_RENDERERS = {
    "gpt_oss": "harmony",
    "deepseek_v32": "its own code",
    "kimi_k3": "its own code",
}
"""Models that vLLM renders without their template."""


class _Named(msgspec.Struct):
    name: str
    template: str


class _Described(msgspec.Struct):
    content: str


class _TokenizerConfig(msgspec.Struct):
    """What tokenizer_config.json has to be like, as far as it is read."""

    chat_template: str | list[_Named] | None = None
    added_tokens_decoder: dict[int, _Described] | None = None


class Unusable(Exception):  # noqa: N818 - named by whose fault it is
    """The folder cannot be used. The text says why, and what to do."""


def problem(folder: Path, template: Path | None = None) -> str:
    """What is wrong with a folder, as far as that shows without loading it; empty if nothing."""
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        return f"needs {' and '.join(missing)}: {REMEDY}"
    if not folder.is_dir():
        return f"{folder} is no folder"
    if not (folder / "tokenizer.json").is_file():
        return f"{folder} has no tokenizer.json; it takes a folder as the Hugging Face hub has it"
    if template is not None and not template.is_file():
        return f"{template} is no file"
    return ""


def load(
    folder: Path, pieces: Pieces, template: Path | None = None, *, chats: bool = True
) -> ModelTokenizer:
    """The tokenizer of a model. `template` replaces the folder's own, as vLLM's
    --chat-template does; without `chats` none is needed. Raises Unusable."""
    if found := problem(folder, template):
        raise Unusable(found)
    # The extra may be absent, and is only worth its 40 MB where a tokenizer is configured.
    from pointsman.engines.tokenizer.encoder import Encoder  # noqa: PLC0415
    from pointsman.engines.tokenizer.growing import GrowingChats  # noqa: PLC0415
    from pointsman.engines.tokenizer.template import ChatTemplate  # noqa: PLC0415

    config = _read_json(folder / "tokenizer_config.json", _TokenizerConfig)
    special = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
    sources = _sources(folder, config, template) if chats else {}
    try:
        templates = {name: ChatTemplate(text, special) for name, text in sources.items()}
    except ValueError as error:
        raise Unusable(f"the chat template in {template or folder} {error}") from None
    path, written = folder / "tokenizer.json", " ".join([*sources.values(), *_texts(special)])
    try:
        encoder = Encoder(path, pieces, template=written, added=_added(config, special))
    except ValueError as error:
        raise Unusable(f"{path} {error}") from None
    if not templates:
        return ModelTokenizer(encoder, None)
    default = templates["default"]
    tools = templates.get("tool_use", default)
    growing = {
        template: GrowingChats(encoder, template, template.leading)
        for template in dict.fromkeys((default, tools))
        if template.leading is not None and encoder.cuts
    }
    return ModelTokenizer(encoder, Templates(default, tools, growing))


def _sources(folder: Path, config: Mapping[str, Any], template: Path | None) -> dict[str, str]:
    """The templates by name, the default one among them. A file wins over
    tokenizer_config.json."""
    model_type = _read_json(folder / "config.json").get("model_type")
    if model_type in _OWN_RENDERERS:
        how = _OWN_RENDERERS[model_type]
        raise Unusable(f"engines render {model_type} by {how}, not by a template; give 'engine'")
    if template is not None:
        return {"default": _read_text(template)}
    sources: dict[str, str] = {}
    match config.get("chat_template"):
        case str() as text:
            sources["default"] = text
        case list() as named:
            sources |= {each["name"]: each["template"] for each in named}
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[extra.stem] = _read_text(extra)
    if (folder / "chat_template.jinja").is_file():
        sources["default"] = _read_text(folder / "chat_template.jinja")
    if "default" not in sources:
        raise Unusable(f"{folder} has no chat template; name its file in chat_template, or 'none'")
    return sources


def _special_tokens(config: Mapping[str, Any]) -> dict[str, object]:
    """The variables that templates get: bos_token and the like."""
    tokens = {name: _content(config.get(name)) for name in _SPECIAL_TOKENS}
    return {name: token for name, token in tokens.items() if token is not None}


def _added(config: Mapping[str, Any], special: Mapping[str, object]) -> list[Mapping[str, Any]]:
    """Tokens that the configuration describes, then those that it only names."""
    decoder = config.get("added_tokens_decoder") or {}
    described = [decoder[number] for number in sorted(decoder, key=int)]
    return [*described, *({"content": text, "special": True} for text in _texts(special))]


def _content(token: object) -> object:
    """A token's text: as it is, or in a description of the token."""
    match token:
        case {"content": str() as content}:
            return content
        case list() as tokens:
            return [_content(each) for each in tokens]
    return token


def _texts(special: Mapping[str, object]) -> list[str]:
    return [token for token in special.values() if isinstance(token, str)]


def _read_json(path: Path, like: type = dict) -> dict[str, Any]:
    """An object, which is `like` this; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        data = path.read_bytes()
        decoded(msgspec.json.Decoder(like).decode, data)
        return decoded(msgspec.json.Decoder(dict[str, Any]).decode, data)
    except (OSError, Undecodable) as error:
        raise Unusable(f"{path} cannot be read: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{path} cannot be read: {error}") from None
