"""The checkpoint, the plan, and what CUDA says. `message.py` says what the fields are."""

from __future__ import annotations

from xpu_moe.doctor.messages.message import Message, row

MESSAGES: tuple[Message, ...] = (
    # checkpoint
    row(
        "router-quantised", ("KeyError", "ValueError"), "cause", "error", "model.tensor_names",
        r"[A-Za-z]*Error:? .*(?:gate|router)\.(?:qweight|qzeros|scales|g_idx|weight_packed|weight_scale\w*|"
        r"weight_zero_point)",
        "the router in this checkpoint was quantised",
        "vLLM loads the gate as a plain fp32 matrix; qweight, qzeros, scales or g_idx there have no place.",
        "take an export that keeps the router (block_sparse_moe.gate) unquantised",
        "intel/auto-round#1462",
    ),
    row(
        "tensor-unexpected",
        ("KeyError", "no parameter", "no module or parameter"),
        "cause", "error", "model.tensor_names",
        'KeyError: [\'\\"][\\w.]*layers\\.\\d+\\.[\\w.]+[\'\\"]|no (?:module or )?parameter named',
        "the checkpoint holds a tensor that the model does not expect",
        "Names or quantised parts differ from what this vLLM loads.",
        "compare the safetensors index with another export",
        "B70 field notes 12",
    ),
    row(
        "draft-weights-missing",
        ("weights missing", "weights were not initialized", "not initialized from checkpoint"),
        "cause", "error", "model.tensor_names",
        r"weights (?:are )?missing from (?:the )?checkpoint|weights were not initialized from checkpoint|"
        r"not initialized from checkpoint",
        "the checkpoint lacks tensors",
        "A layer (often a draft layer that config.json advertises) has no weights in the index.",
        "start without --speculative-config; check the download",
        "MiniMax-M2.7#16", also=("plan.speculative_method",),
        asked=(("speculative", "plan.speculative_method"),),
    ),
    row(
        "no-moe-backend", ("No WNA16 MoE backend",), "cause", "error", "model.quantization_config",
        r"No WNA16 MoE backend supports",
        "these bits have no MoE kernel on this device",
        "On XPU only 4-bit experts have one.",
        "use a 4-bit (group 128, symmetric) checkpoint",
        "B70 cookbook#10",
    ),
    row(
        "quantisation-mismatch",
        ("does not match the quantization method",),
        "cause", "error", "model.quantization_config",
        r"does not match the quantization method",
        "--quantization contradicts the checkpoint",
        "The checkpoint's own config.json names its method.",
        "leave --quantization away",
        "vLLM arguments",
    ),
    # plan
    row(
        "kv-dtype", ("Unsupported data type of kv cache", "invalid choice"), "cause", "error", "plan.kv_cache_dtype",
        r"Unsupported data type of kv cache: *(?P<name>\S+)|--kv-cache-dtype: invalid choice",
        "this KV data type is refused",
        "The attention backend does not take it.",
        "--kv-cache-dtype auto",
        "B70 u4 decode note",
    ),
    row(
        "dcp",
        ("decode context parallel", "Decode context parallel", "Decode Context Parallel", "dcp_size"),
        "cause", "error", "plan.dcp",
        r"[Dd]ecode [Cc]ontext [Pp]arallel|divisible by dcp_size",
        "decode context parallelism is impossible here",
        "Grouped-query attention needs tensor parallel size > KV heads (8 for MiniMax).",
        "--decode-context-parallel-size 1",
        "vLLM 0.26, 0.32",
    ),
    row(
        "tp-block", ("not divisible", "block_n", "block_k", "must be divisible"), "cause", "error", "plan.tp",
        r"\bblock_[nk]\b|not divisible|must be divisible by tensor parallel|(?:attention|key/value|"
        r"kv) heads.*must be divisible",
        "the model cannot be cut into this many tensor-parallel slices",
        "Heads, KV heads or the experts' slice against the quantisation block do not divide.",
        "--tensor-parallel-size 4 (MiniMax: 1, 2 or 4)",
        "recipes#96",
    ),
    row(
        "tool-parser", ("tool call parser",), "cause", "error", "plan.tool_call_parser",
        r"invalid tool call parser|auto-tool-choice requires --tool-call-parser",
        "this vLLM does not know the tool parser",
        "The line lists those known.",
        "--tool-call-parser minimax_m2",
        "vLLM 0.26, 0.32",
    ),
    row(
        "reasoning-parser", ("easoning parser",), "cause", "error", "plan.reasoning_parser",
        r"[Rr]easoning parser .*not found",
        "this vLLM does not know the reasoning parser",
        "The line lists those known.",
        "--reasoning-parser minimax_m2",
        "vLLM 0.26, 0.32",
    ),
    row(
        "attention-backend", ("attention backend", "Selected backend"), "cause", "error", "plan.attention_backend",
        r"(?:Invalid|Unknown) attention backend|Selected backend .* is not valid",
        "this attention backend cannot serve here",
        "The line says why.",
        "leave --attention-backend away",
        "vLLM platforms",
    ),
    row(
        "speculation", ("speculative method", "speculative model"), "cause", "error", "plan.speculative_method",
        r"Unsupported speculative method|without speculative model|unknown speculative method",
        "this speculation does not exist for the model",
        "The line says why.",
        "start without --speculative-config",
        "vLLM 0.26, 0.32",
    ),
    row(
        "length", ("derived max_model_len",), "cause", "error", "plan.max_model_len",
        r"is greater than the derived max_model_len",
        "max_model_len is above the model's own maximum",
        "The line has both.",
        "lower --max-model-len",
        "vLLM",
    ),
    row(
        "dtype", ("float16",), "cause", "error", "plan.dtype",
        r"[Bb](?:f|F)loat16 is (?:only|not) supported",
        "this card has no bfloat16",
        "The line names it.",
        "--dtype float16",
        "vLLM",
    ),
    row(
        "port", ("ddress already in use",), "cause", "error", "plan.port",
        r"[Aa]ddress already in use",
        "the port is taken",
        "Another server listens there.",
        "--port with another number",
        "operating system",
    ),
    # CUDA
    row(
        "nvls", ("NVLS", "nvls", "ulticast", "MULTICAST"), "cause", "error", "env.NCCL_NVLS_ENABLE",
        r"(?i)(?:nvls|multicast).*(?:fail|error|could not|cannot|unable|not supported|bind)|"
        r"(?:fail|error|warn|could not|cannot|unable|bind).*(?:nvls|multicast)",
        "NVLink multicast could not bind",
        "Fabric manager not up, a container without multicast, MIG, or a virtual machine; NCCL 2.29 fails "
        "where 2.28 fell back.",
        "export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1",
        "nccl issues",
    ),
    row(
        "deep-gemm", ("recipe", "DeepGEMM", "deep_gemm"), "cause", "error", "env.VLLM_USE_DEEP_GEMM",
        r"(?i)recipe.*(?:sf|scal|arch|not|unsupported|unknown|assert|fail|error)|"
        r"(?:unknown|unsupported|no|assertion|error).*recipe|deep_?gemm.*(?:recipe|unsupported|arch|assert)",
        "DeepGEMM has no kernel for this architecture",
        "It covers sm_90 and sm_100 only.",
        "export VLLM_USE_DEEP_GEMM=0",
        "vLLM issues",
    ),
    row(
        "fp8-triton", ("fp8e4nv",), "cause", "error", "model.quantization_config",
        r"fp8e4nv",
        "Triton's e4m3 needs compute capability 8.9",
        "This card is older.",
        "use a 4-bit or 16-bit checkpoint; --kv-cache-dtype auto",
        "B70 field notes 12", also=("plan.kv_cache_dtype", "gpus"),
        asked=(("'kv_cache_dtype': 'fp8", "plan.kv_cache_dtype"),),
    ),
)  # fmt: skip
