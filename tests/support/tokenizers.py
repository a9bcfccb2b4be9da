"""Model folders with real tokenizers, of the kinds that models have, made on the spot."""

import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of Qwen's kind."""

INST = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "[INST] {{ m['content'] }} [/INST]{% else %} {{ m['content'] }} {{ eos_token }}"
    "{% endif %}{% endfor %}"
)
"""Of Llama 2's kind: few special tokens, and no generation prompt."""

_CORPUS = [
    "The train leaves the station at noon, and the points are set for track nine.",
    "def place(node, request):\n    return node.cost(request)  # seconds",
    "Überholgleis, Weichenwärter; höchstens 3,5 km.  Zwei  Leerzeichen.",
    "信号機が青になると列車は発車する。 émigré naïve 🚂🚃🚃",
    "a b c d e f g 0 1 2 3 4 5 6 7 8 9 <|im_start|> </s> ( ) [ ] { } | < >",
    "assistant user system tool\nuser\nassistant\n",
] * 4


def write_folder(
    folder: Path,
    tokenizer: Tokenizer | None = None,
    template: str | None = CHATML,
    **config: Any,
) -> Path:
    """A model's folder as the hub has it; `config` goes into tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level()).save(str(folder / "tokenizer.json"))
    written = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}, **config}
    if template is not None:
        written["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


def byte_level(*, prefix_space: bool = False) -> Tokenizer:
    """GPT-2's, Llama 3's and Qwen's kind: any byte is a token, words are cut by a pattern."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def with_template(tokenizer: Tokenizer) -> Tokenizer:
    """One that puts <s> before and </s> behind a prompt by itself."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")],
    )
    return tokenizer


def sentence_piece(scheme: str) -> Tokenizer:
    """Llama 2's and Mistral's kind: a blank is a letter, and one is put before the text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def legacy_llama() -> Tokenizer:
    """The same by a normaliser, which puts its blank before every piece."""
    tokenizer = sentence_piece("never")
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def unigram() -> Tokenizer:
    """T5's and Gemma's kind: the likeliest pieces, after compatibility normalisation."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=300,
        special_tokens=["<unk>", *SPECIALS],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind: lower case, no accents."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[UNK]", *SPECIALS], show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def awkward() -> Tokenizer:
    """Added tokens that take blanks along, stand in each other, and begin as others end."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(
        [
            AddedToken("<|tool|>", lstrip=True),
            AddedToken("<|call|>", rstrip=True),
            AddedToken("<|im_start|>assistant", special=True),
            AddedToken("|></s", special=True),
            AddedToken("x<|im_e", special=True),
            AddedToken("<s>", rstrip=True, special=True),
        ]
    )
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("Große", lstrip=True)])
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = MappingProxyType(
    {
        "byte_level": byte_level,
        "byte_level_prefix_space": lambda: byte_level(prefix_space=True),
        "byte_level_template": lambda: with_template(byte_level()),
        "sentence_piece_first": lambda: sentence_piece("first"),
        "sentence_piece_always": lambda: sentence_piece("always"),
        "legacy_llama": legacy_llama,
        "unigram": unigram,
        "word_piece": word_piece,
        "awkward": awkward,
    }
)


@cache
def tokenizer_json(kind: str) -> str:
    """One of `KINDS` as its file; training takes a moment, so once."""
    text: str = KINDS[kind]().to_str()
    return text


def word_list(count: int = 3_000) -> list[str]:
    """Made-up words, the same each time."""
    rng = random.Random(3)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(rng.choices(letters, k=rng.randint(2, 7))) for _ in range(count)]


def words_tokenizer() -> Tokenizer:
    """Byte-level BPE that knows `word_list`: nearly every one is a token, behind a blank."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=16_000,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" " + " ".join(word_list())] * 3, trainer)
    return tokenizer
