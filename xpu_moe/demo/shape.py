"""What a demo checkpoint looks like: sizes and format. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

QUANTS = ("none", "auto-round", "gptq", "fp8")
FP8_BLOCK = 128
# (least, most) of each size: far beyond any model, so that a typing error ends in words and not in an allocator. The
# seed's are torch's, without its negative ones.
_BOUNDS = {
    "layers": (1, 1 << 10),
    "hidden_size": (1, 1 << 17),
    "intermediate_size": (1, 1 << 20),
    "num_experts": (1, 1 << 14),
    "top_k": (1, 1 << 14),
    "heads": (1, 1 << 12),
    "kv_heads": (1, 1 << 12),
    "head_dim": (1, 1 << 12),
    "group_size": (1, 1 << 12),
    "max_position": (1, 1 << 24),
    "vocab_size": (0, 1 << 22),
    "scale_bits": (1, 11),
    "shards": (1, 1 << 12),
    "seed": (0, (1 << 63) - 1),
}
_LINEAR_BYTES, _PLAIN_BYTES = 40, 12  # a value of the module that is being quantised, or stored as it is (measured)


class BadShape(ValueError):
    """Sizes that no checkpoint can have; the message names the field."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a MiniMax-M2 model, in its config's terms; the defaults make about 2 MiB that serve at tp 1 and 2.

    `scale_bits` is the number of significant bits of a quantisation scale: with 4, the dequantised twin is exact in
    bf16; 11 keeps all that fp16 holds. `vocab_size` 0 = the tokenizer's, rounded up to 64.
    """

    quant: str = "auto-round"
    layers: int = 2
    hidden_size: int = 256
    intermediate_size: int = 256
    num_experts: int = 8
    top_k: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    group_size: int = 128
    max_position: int = 4096
    vocab_size: int = 0
    scale_bits: int = 4
    shards: int = 2
    experts_only: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        def want(good: bool, field: str, wanted: str) -> None:
            if not good:
                raise BadShape(f"{field}: got {getattr(self, field)!r}, wanted {wanted}")

        want(self.quant in QUANTS, "quant", " or ".join(QUANTS))
        for field, (least, most) in _BOUNDS.items():
            want(least <= getattr(self, field) <= most, field, f"a whole number from {least} to {most}")
        want(self.top_k <= self.num_experts, "top_k", f"at most num_experts {self.num_experts}")
        want(self.heads % self.kv_heads == 0, "heads", f"a multiple of kv_heads {self.kv_heads}")
        want(self.head_dim % 4 == 0, "head_dim", "a multiple of 4 (half of it is rotated, in pairs)")
        if self.quant in ("auto-round", "gptq"):
            want(self.group_size in (32, 64, 128), "group_size", "32, 64 or 128")
            for field in ("hidden_size", "intermediate_size"):
                want(getattr(self, field) % self.group_size == 0, field, f"a multiple of group_size {self.group_size}")
            width = self.heads * self.head_dim
            want(width % self.group_size == 0, "head_dim", f"heads x head_dim a multiple of group {self.group_size}")

    def weights(self, vocab_size: int) -> int:
        """The number of values of all tensors; norms and biases, a thousandth of it, left out."""
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads)
        experts = self.num_experts * self.hidden_size * (3 * self.intermediate_size + 1)
        return 2 * vocab_size * self.hidden_size + self.layers * (attention + experts)

    def memory(self, vocab_size: int) -> int:
        """Bytes that writing it takes at most: what is stored and its twin, a shard's copies, one module in float32."""
        linear = _LINEAR_BYTES * max(self.intermediate_size, self.heads * self.head_dim)
        largest = max(linear, _PLAIN_BYTES * vocab_size) * self.hidden_size
        stored = {"none": 0, "fp8": 1.1}.get(self.quant, 0.5 + 4 / self.group_size)
        return int((2 + stored + 4 / self.shards) * self.weights(vocab_size)) + largest


def config(shape: Shape, vocab_size: int, bos: int, eos: int) -> dict[str, Any]:
    """The model's config.json, field for field as the released checkpoints spell it."""
    values: dict[str, Any] = {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rotary_dim": shape.head_dim // 2,
        "rope_theta": 5000000,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-6,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "num_local_experts": shape.num_experts,
        "num_experts_per_tok": shape.top_k,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "attn_type_list": [1] * shape.layers,
        "tie_word_embeddings": False,
        "use_mtp": False,
        "num_mtp_modules": 0,
        "shared_intermediate_size": 0,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "torch_dtype": "bfloat16",
    }
    quantization = quantization_config(shape)
    return values | ({"quantization_config": quantization} if quantization else {})


def quantization_config(shape: Shape) -> dict[str, Any] | None:
    """The checkpoint's quantization_config as the named tool exports it; None without quantisation."""
    if shape.quant == "auto-round":
        plain = {"bits": 16, "data_type": "float"}
        kept: dict[str, Any] = {"lm_head": plain}
        for layer in range(shape.layers):
            kept[f"model.layers.{layer}.block_sparse_moe.gate"] = plain
            if shape.experts_only:
                kept |= {f"model.layers.{layer}.self_attn.{part}_proj": plain for part in "qkvo"}
        return {
            "quant_method": "auto-round",
            "bits": 4,
            "group_size": shape.group_size,
            "sym": True,
            "data_type": "int",
            "packing_format": "auto_round:auto_gptq",
            "block_name_to_quantize": "model.layers",
            "extra_config": kept,
            "autoround_version": "0.9.0",
            "iters": 0,
        }
    if shape.quant == "gptq":
        skipped: dict[str, Any] = {"-:.*gate$": {}} | ({"-:.*self_attn.*": {}} if shape.experts_only else {})
        return {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": shape.group_size,
            "sym": True,
            "desc_act": False,
            "lm_head": False,
            "dynamic": skipped,
        }
    if shape.quant == "fp8":
        return {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "float8_e4m3fn",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
            "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
        }
    return None
