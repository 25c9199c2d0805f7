"""config.json of the models that the tests plan: MiniMax-M2.x as published, and others with the usual names."""

from __future__ import annotations

from typing import Any

INT4 = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int",
        "packing_format": "auto_round:auto_gptq"}  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "weight_block_size": [128, 128]}
MINIMAX: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072,
    "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8,
    "head_dim": 128, "num_local_experts": 256, "num_experts_per_tok": 8, "scoring_func": "sigmoid",
    "use_routing_bias": True, "use_qk_norm": True, "vocab_size": 200064, "max_position_embeddings": 196608,
    "use_mtp": True, "num_mtp_modules": 3, "torch_dtype": "bfloat16",
}  # fmt: skip
MINIMAX_INT4 = {**MINIMAX, "quantization_config": INT4}
MINIMAX_FP8 = {**MINIMAX, "quantization_config": FP8}
QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "vocab_size": 129280, "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
    "quantization_config": FP8,
}  # fmt: skip
