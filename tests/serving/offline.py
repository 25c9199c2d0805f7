"""Run in a child: `python offline.py JOBS RESULTS`. Several models, one after the other, in one process.

Starting Python and importing vLLM costs more than a tiny model's load, so one child serves a whole test file. JOBS is a
JSON list of {"name", "model", "llm": {...}, "prompts": [[ids]], "tokens": n, "layer": path of a .pt file or null};
RESULTS gets {name: {"logprobs", "tokens", "best", "seconds", "report", "options"}}. A layer file holds x, topk_weights
and topk_ids; the first MoE layer's output is written beside it as <file>.out.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

ENVIRON = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",  # matrices this small gain nothing from a second thread, and lose where the machine is busy
}  # fmt: skip


def run(job: dict) -> dict:
    import torch
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    from xpu_moe.serving import report, tell

    tell._worker = report.Worker()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XPU_MOE_REPORT"] = folder
        settings = {
            "max_model_len": 512,
            "seed": 0,
            "disable_log_stats": True,
            "enforce_eager": True,
            "dtype": "float32",
        }
        llm = LLM(job["model"], **{**settings, **job.get("llm", {})})
        told = report.summary(folder)
    sampling = SamplingParams(temperature=0, max_tokens=job["tokens"], ignore_eos=True, logprobs=2, prompt_logprobs=0)
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    started = time.monotonic()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.monotonic() - started
    if job.get("layer"):
        given = torch.load(job["layer"], weights_only=True)

        def first_layer(model):
            layer = next(m for m in model.modules() if type(m).__name__ == "RoutedExperts")
            return layer.quant_method.apply(layer, *given, None, None)

        torch.save(llm.apply_model(first_layer)[0], job["layer"] + ".out")
    options = llm.llm_engine.vllm_config.additional_config.get("xpu_moe")
    del llm
    cleanup_dist_env_and_memory()
    return {
        "logprobs": [[next(iter(at.values())).logprob for at in out.prompt_logprobs[1:]] for out in outputs],
        "tokens": [list(out.outputs[0].token_ids) for out in outputs],
        "best": [[sorted((v.logprob for v in at.values()), reverse=True)[:2] for at in out.outputs[0].logprobs]
                 for out in outputs],
        "seconds": seconds,
        "report": told,
        "options": options,
    }  # fmt: skip


def main(jobs_file: str, results_file: str) -> None:
    for name, value in ENVIRON.items():
        os.environ.setdefault(name, value)
    results = {}
    with open(jobs_file, encoding="utf-8") as given:
        jobs = json.load(given)
    for job in jobs:
        started = time.monotonic()
        try:
            results[job["name"]] = run(job)
        except Exception as error:
            if not job.get("may_fail"):
                raise
            results[job["name"]] = {"error": f"{type(error).__name__}: {error}"}
        print(f"job {job['name']}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    with open(results_file, "w", encoding="utf-8") as out:
        json.dump(results, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
