"""What ends vLLM on a CPU. `message.py` says what the fields are."""

from __future__ import annotations

from xpu_moe.doctor.messages.message import Message, row

MESSAGES: tuple[Message, ...] = (
    row(
        "cpu-memory", ("desired CPU memory utilization",), "cause", "error", "os.ram_bytes",
        r"Available memory on node \S+ \((?P<free>[\d.]+)/(?P<whole>[\d.]+) GiB\).* less than desired CPU memory "
        r"utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        "vLLM wants {wanted} GiB of the host's memory, and {free} GiB are free",
        "On a CPU --gpu-memory-utilization is the share of the host's memory that must be free at the start; with a "
        "size of the KV cache (VLLM_CPU_KVCACHE_SPACE, --kv-cache-memory-bytes) vLLM does not ask for that share.",
        "--kv-cache-memory-bytes BYTES (or export VLLM_CPU_KVCACHE_SPACE=4, in GiB), or lower "
        "--gpu-memory-utilization (now {share}), or end other programs",
        "vLLM source, v1/worker/cpu_worker.py", also=("plan.gpu_memory_utilization", "plan.kv_cache_memory_bytes"),
    ),
    row(
        "cpu-kv", ("less than requested memory for kv",), "cause", "error", "plan.kv_cache_memory_bytes",
        r"Available memory on node \S+ \((?P<free>[\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than requested "
        r"memory for kv \((?P<wanted>-?[\d.]+)",
        "the KV cache wants {wanted} GiB of the host's memory, and {free} GiB are free",
        "The weights are loaded by then; what is left must hold the KV cache.",
        "lower --kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE (in GiB), or end other programs",
        "vLLM source, v1/worker/cpu_worker.py", also=("env.VLLM_CPU_KVCACHE_SPACE",),
    ),
)  # fmt: skip
