"""torch.distributed and XCCL: who is who, and how a hang shows."""

from __future__ import annotations

from xpu_moe.env.variable import Variable

_RUN = "torch.distributed.run documentation: environment variables"

VARIABLES = (
    Variable("RANK", "int", "This process's rank in the whole job; set by torchrun.", "torch", source=_RUN),
    Variable("WORLD_SIZE", "int", "Number of ranks of the whole job; set by torchrun.", "torch", source=_RUN),
    Variable("LOCAL_RANK", "int", "This process's rank on its host; set by torchrun.", "torch", source=_RUN),
    Variable("LOCAL_WORLD_SIZE", "int", "Ranks on this host; set by torchrun.", "torch", source=_RUN),
    Variable("MASTER_ADDR", "str", "Host of the rendezvous store; set by torchrun.", "torch", source=_RUN),
    Variable("MASTER_PORT", "int", "Port of the rendezvous store; set by torchrun.", "torch", source=_RUN),
)
