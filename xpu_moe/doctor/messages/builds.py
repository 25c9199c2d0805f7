"""Packages built for another device, what the first compilation lacks, and the plugin's own refusals."""

from __future__ import annotations

from xpu_moe.doctor.messages.message import Message, row

MESSAGES: tuple[Message, ...] = (
    row(
        "plugin-refuses", ("UnsupportedCheckpoint", "EndlessPattern"), "cause", "error", "model.quantization_config",
        r"(?:UnsupportedCheckpoint|EndlessPattern): (?P<says>\S.{3,110})",
        "our plugin refuses the checkpoint: {says}",
        "It names the field or the tensor that the kernels cannot serve.",
        "python -m xpu_moe.doctor --model FOLDER says so before a load; take another export, or download the named "
        "file again",
        "xpu_moe/formats",
    ),
    row(
        "model-unknown", ("are not supported for now", "does not recognize this architecture"), "cause", "error",
        "python.packages.vllm",
        r"Model architectures \[[^]]*\] are not supported for now|does not recognize this architecture",
        "this vLLM does not know the model",
        "It is older than the model, or transformers is.",
        "install vLLM 0.26.x or 0.32.x: scripts/serve_minimax.sh --install-plan prints the commands",
        "vLLM source, model registry",
    ),
    row(
        "vllm-of-another-device", ("No module named 'vllm._",), "cause", "error", "python.packages.vllm",
        r"^(?!.*Failed to import from).*No module named 'vllm\._\w+'",  # that is a warning of every build but CUDA's
        "this vLLM was built for another device",
        "Its compiled part for the device is not in the package.",
        "take the environment that scripts/serve_minimax.sh makes; --install-plan prints the commands",
        "vLLM source",
    ),
    row(
        "torch-of-another-device", ("compiled with", "has no attribute 'xpu'"), "cause", "error",
        "python.packages.torch",
        r"(?:PyTorch was|Torch not) compiled with(?:out)? (?P<device>XPU|CUDA)|module 'torch' has no attribute 'xpu'",
        "this torch was built without {device|XPU}",
        "The plain wheel of the package index is the one for CUDA or for the CPU.",
        "take the environment that scripts/serve_minimax.sh makes; --install-plan prints the commands",
        "PyTorch builds",
    ),
    row(
        "forked", ("in forked subprocess",), "cause", "error", "env.VLLM_WORKER_MULTIPROC_METHOD",
        r"Cannot re-initialize (?:XPU|CUDA) in forked subprocess",
        "a worker was forked from a process that uses the card",
        "A forked process cannot use an initialised Level Zero or CUDA context.",
        "export VLLM_WORKER_MULTIPROC_METHOD=spawn",
        "PyTorch source",
    ),
    row(
        "python-headers", ("Python.h",), "cause", "error", "python.version",
        r"Python\.h['’]?: No such file",
        "Python's headers are missing",
        "Triton compiles its launcher against them at the first start.",
        "sudo apt install python3-dev (python3.12-dev where that is the Python in use)",
        "Triton source",
    ),
    row(
        "no-such-folder", ("HFValidationError", "Repo id must"), "cause", "error", "model",
        r"HFValidationError|Repo id must",
        "the model's folder was not found",
        "vLLM takes what is no folder for a name on the hub.",
        "--model with the folder that holds config.json",
        "huggingface_hub source",
    ),
    row(
        "no-memory-to-map", ("Cannot allocate memory",), "cause", "error", "os.ram_bytes",
        r"mmap.*Cannot allocate memory|Cannot allocate memory.*mmap",
        "the host has no memory to map a file",
        "Loading maps the checkpoint and keeps weights in host memory.",
        "free -h; RAM + swap must be more than the cards have together: end other processes, or add swap",
        "POSIX",
    ),
    row(
        "ranks-without-address", ("gaierror", "connectFullMesh"), "cause", "error", "env.GLOO_SOCKET_IFNAME",
        r"^(?!.*(?:huggingface|hf\.co|https?:)).*(?:gaierror|connectFullMesh failed)",
        "the ranks do not find each other",
        "The host's own name leads to no address, or to an interface that is down.",
        "export GLOO_SOCKET_IFNAME=lo VLLM_HOST_IP=127.0.0.1 (one host)",
        "PyTorch gloo; vLLM source",
    ),
    row(
        "compiler-crashed", ("Internal Compiler Error",), "cause", "error", "os.compute_runtime",
        r"IGC: Internal Compiler Error",
        "Intel's graphics compiler crashed",
        "Compiler and compute runtime of different releases do not fit together.",
        "update compute-runtime and its igc packages together (26.18 or later)",
        "intel-graphics-compiler",
    ),
    row(
        "crashed", ("Segmentation fault", "SIGSEGV"), "symptom", "error", "libraries",
        r"Segmentation fault|SIGSEGV",
        "a library crashed",
        "Mostly two generations of one runtime in a process, or a driver that does not fit.",
        "python -m xpu_moe.doctor --deep; unset LD_LIBRARY_PATH; export PYTHONFAULTHANDLER=1 shows where",
        "Linux",
    ),
)  # fmt: skip
