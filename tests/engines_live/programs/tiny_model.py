"""Writes a tiny llama with random weights, for every engine: the same greedy text from each.

    python tiny_model.py FOLDER [HIDDEN LAYERS]

FOLDER gets what the Hugging Face hub has of a model, and the same as model.gguf for llama.cpp;
FOLDER/adapter a LoRA adapter for it, which changes what it says.
With HIDDEN and LAYERS the weights are left out: vLLM makes them up (`--load-format dummy`).
Runs in the engines' own environment.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
CONTEXT = 8192
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Weights = dict[str, "np.ndarray[Any, np.dtype[np.float32]]"]


def main(folder: Path, hidden: int = 128, layers: int = 2, *, with_weights: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _config(tokenizer, hidden, layers)
    _dump(folder / "tokenizer_config.json", _TOKENIZER_CONFIG)
    _dump(folder / "config.json", config)
    if with_weights:
        weights = _weights(config)
        save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
        _write_gguf(folder / "model.gguf", config, tokenizer, weights)
        _write_adapter(folder / "adapter", config, weights)


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


# --- tokens -------------------------------------------------------------------------------


def _tokenizer() -> Tokenizer:
    """Byte-level BPE over made-up words, filled up so that every id decodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, START, STOP],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(random.Random(0)), trainer=trainer)
    missing = VOCABULARY - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f" w{number:04d}" for number in range(missing)])
    return tokenizer


def _lines(rng: random.Random) -> list[str]:
    syllables = ("ba", "do", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo")
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(600)]
    return [" ".join(rng.choices(words, k=rng.randint(5, 25))) + "." for _ in range(2000)]


_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": CONTEXT,
    "bos_token": END,
    "eos_token": STOP,
    "pad_token": END,
    "unk_token": None,
    "clean_up_tokenization_spaces": False,
    "additional_special_tokens": [START],
    "chat_template": CHAT_TEMPLATE,
}


# --- weights ------------------------------------------------------------------------------


def _config(tokenizer: Tokenizer, hidden: int, layers: int) -> dict[str, Any]:
    heads = hidden // 32 if hidden <= 128 else hidden // 64
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden if hidden <= 128 else hidden * 8 // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 3) if hidden > 128 else heads // 2,
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id(END),
        "eos_token_id": tokenizer.token_to_id(STOP),
        "pad_token_id": tokenizer.token_to_id(END),
        "torch_dtype": "float32",
    }


def _weights(config: dict[str, Any]) -> Weights:
    rng = np.random.default_rng(0)
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int, spread: float = 0.05) -> Any:
        return (rng.standard_normal((rows, columns)) * spread).astype(np.float32)

    weights: Weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden, 1.0),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(VOCABULARY, hidden, 0.3),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        for name, shape in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = np.ones(hidden, np.float32)
    return weights


# --- LoRA ---------------------------------------------------------------------------------

ADAPTER_RANK = 8
ADAPTED = ("q_proj", "v_proj")


def _write_adapter(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    folder.mkdir(exist_ok=True)
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": ADAPTER_RANK,
        "lora_alpha": 2 * ADAPTER_RANK,
        "target_modules": list(ADAPTED),
        "bias": "none",
    }
    _dump(folder / "adapter_config.json", described)
    rng = np.random.default_rng(1)
    tensors: Weights = {}
    for layer in range(config["num_hidden_layers"]):
        for module in ADAPTED:
            name = f"model.layers.{layer}.self_attn.{module}"
            rows, columns = weights[f"{name}.weight"].shape
            for half, shape in (("A", (ADAPTER_RANK, columns)), ("B", (rows, ADAPTER_RANK))):
                values = (rng.standard_normal(shape) * 0.3).astype(np.float32)
                tensors[f"base_model.model.{name}.lora_{half}.weight"] = values
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})


# --- llama.cpp ----------------------------------------------------------------------------

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _write_gguf(path: Path, config: dict[str, Any], tokenizer: Tokenizer, weights: Weights) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    _write_shape(writer, config)
    _write_vocabulary(writer, config, tokenizer)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    writer.add_tensor("output.weight", weights["lm_head.weight"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in _GGUF_NAMES.items():
            tensor = weights[f"model.layers.{layer}.{theirs}.weight"]
            if ours in heads:
                tensor = _rotary(tensor, heads[ours])
            writer.add_tensor(f"blk.{layer}.{ours}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rotary(matrix: Any, heads: int) -> Any:
    """llama.cpp rotates neighbours where Hugging Face rotates halves."""
    rows, columns = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _write_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _write_vocabulary(
    writer: gguf.GGUFWriter, config: dict[str, Any], tokenizer: Tokenizer
) -> None:
    described = json.loads(tokenizer.to_str())
    texts = {number: text for text, number in described["model"]["vocab"].items()}
    kinds = dict.fromkeys(range(VOCABULARY), gguf.TokenType.NORMAL)
    for added in described["added_tokens"]:
        texts[added["id"]] = added["content"]
        special = added["special"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
    merges = described["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts[number] for number in range(VOCABULARY)])
    writer.add_token_types([kinds[number] for number in range(VOCABULARY)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), with_weights=False)
    else:
        main(Path(sys.argv[1]))
