"""Child of test_vllm_report: starts vLLM in one process and prints what it reports of its memory, as JSON."""

from __future__ import annotations

import json
import sys


def main(model: str, kv_bytes: int) -> None:
    from vllm import LLM

    llm = LLM(model=model, dtype="bfloat16", max_model_len=512, max_num_seqs=2, kv_cache_memory_bytes=kv_bytes,
              enforce_eager=True, skip_tokenizer_init=True)  # fmt: skip
    cache = llm.llm_engine.vllm_config.cache_config
    weights = llm.apply_model(lambda model: sum(p.numel() * p.element_size() for p in model.parameters()))[0]
    from vllm.platforms import current_platform

    found = {
        "device": current_platform.device_type,
        "blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "weights_bytes": weights,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
