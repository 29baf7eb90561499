"""A tiny Qwen2 checkpoint whose output depends on its whole context, and the flags to serve it on a CPU.

SGLang's `--load-format dummy` draws weights so small that the last token alone decides the output; a comparison of
outputs then proves nothing. Here every matrix has entries of scale 1/sqrt(fan-in) and every norm is 1, as in a trained
network at its start, so attention and residual stream have the same size.
"""

import json
import math
from pathlib import Path

__all__ = ["EOS_TOKEN", "VOCABULARY", "make_tiny_adapter", "make_tiny_checkpoint", "tiny_environment", "tiny_flags"]

VOCABULARY = 2048
EOS_TOKEN = 2
_HIDDEN, _INNER, _LAYERS, _HEADS = 64, 128, 2, 2
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tiny_checkpoint(folder: str | Path, seed: int = 0) -> Path:
    """Writes the model, a byte-level tokenizer and a chat template; does nothing where the same is there already.

    Args:
        folder: Where to put it; made if it is missing.
        seed: Seed of the weights.

    Returns:
        The folder.
    """
    folder = Path(folder)
    stamp = folder / f".complete-{seed}"
    if stamp.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(folder / "model.safetensors", seed)
    (folder / "config.json").write_text(json.dumps(_config(), indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_TOKEN, "bos_token_id": 1}))
    _write_tokenizer(folder)
    stamp.touch()
    return folder


def make_tiny_adapter(folder: str | Path, seed: int, rank: int = 4) -> Path:
    """Writes a LoRA adapter for the tiny model with random weights that change its outputs, in PEFT's format.

    Args:
        folder: Where to put it; made if it is missing.
        seed: Seed of the weights.
        rank: Its rank.

    Returns:
        The folder.
    """
    import torch
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(_LAYERS):
        for name in ("q_proj", "v_proj"):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, _HIDDEN, generator=generator) / math.sqrt(_HIDDEN)
            tensors[f"{stem}.lora_B.weight"] = torch.randn(_HIDDEN, rank, generator=generator) / math.sqrt(rank)
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none"}
    settings |= {"target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0, "base_model_name_or_path": "tiny"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def tiny_environment() -> dict[str, str]:
    """Returns the environment variables that SGLang needs here: no kernels, one thread, no network."""
    stubs = Path(__file__).resolve().parent / "stubs"
    return {
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(stubs),
    }


def tiny_flags(model: str | Path, *, kv_tokens: int = 8192, max_running: int = 32) -> list[str]:
    """Returns the command line flags with which SGLang serves the tiny model on a CPU."""
    return [
        *("--model-path", str(model)),
        *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-cuda-graph"),
        *("--max-total-tokens", str(kv_tokens), "--max-running-requests", str(max_running)),
        *("--mem-fraction-static", "0.5", "--random-seed", "0", "--enable-cache-report"),
    ]


def _config() -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN,
        "use_cache": True,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
    }


def _write_weights(path: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, fan_in: int) -> "torch.Tensor":
        return torch.randn(rows, columns, generator=generator) / math.sqrt(fan_in)

    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, _HIDDEN, 1),
        "model.norm.weight": torch.ones(_HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, _HIDDEN, _HIDDEN),
    }
    for layer in range(_LAYERS):
        stem = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{stem}self_attn.{name}.weight"] = matrix(_HIDDEN, _HIDDEN, _HIDDEN)
            if name != "o_proj":
                tensors[f"{stem}self_attn.{name}.bias"] = torch.zeros(_HIDDEN)
        tensors[f"{stem}mlp.gate_proj.weight"] = matrix(_INNER, _HIDDEN, _HIDDEN)
        tensors[f"{stem}mlp.up_proj.weight"] = matrix(_INNER, _HIDDEN, _HIDDEN)
        tensors[f"{stem}mlp.down_proj.weight"] = matrix(_HIDDEN, _INNER, _INNER)
        tensors[f"{stem}input_layernorm.weight"] = torch.ones(_HIDDEN)
        tensors[f"{stem}post_attention_layernorm.weight"] = torch.ones(_HIDDEN)
    save_file(tensors, str(path), metadata={"format": "pt"})


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    special = ["<pad>", "<s>", "</s>"]
    words = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
