"""Every key of a config.json that a plan is made of, checked in one place before anything is counted.

Absent or null is what writers leave where a model has none of it, or its family's default; 0 only where a model can
be without. All else that is no such number, or that two keys tell differently, is an error that names the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xpu_moe.plan import quantization
from xpu_moe.plan.checkpoint import BadCheckpoint, Checkpoint
from xpu_moe.plan.shapes import (
    EXPERTS,
    INNER,
    KINDS,
    MISSING,
    MOST,
    NEEDED,
    TOP_K,
    TYPES,
    faults,
    is_size,
    language_part,
    of_attention,
    shown_value,
)  # fmt: skip
from xpu_moe.plan.weights import Weights

_POSITIVE = ("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings")
_OR_ZERO = (
    *EXPERTS, *TOP_K, *INNER, "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
    "n_shared_experts", "first_k_dense_replace", "kv_lora_rank", "qk_rope_head_dim",
)  # fmt: skip
_FLAGS = ("tie_word_embeddings", "use_qk_norm")
_MINIMAX = ("num_key_value_heads", "head_dim")  # absent, transformers takes MiniMax-M2's own
_ADVICE = "take config.json and weights from the same export"
_BITS, _GROUPS = ("bits", "num_bits", "w_bit", "weight_bits"), ("group_size", "q_group_size")
_MOST_GROUP = (1 << 20) - 1  # `quantization` reads no larger one
Fault = tuple[str, str]  # key, MISSING or "got …, wanted …"


def check(checkpoint: Checkpoint) -> str:
    """Raise BadCheckpoint for the first key that no plan can be made of.

    Returns why config.json does not tell the weights' sizes (a quantisation whose bytes are not known), else "".
    """
    inner = checkpoint.config.get("text_config")
    if inner is not None and not isinstance(inner, Mapping):
        raise _bad(checkpoint, "text_config", _got(inner, "an object"))
    nested: Mapping[str, Any] = inner or {}
    for key, says in _faults(language_part(checkpoint.config)):
        raise _bad(checkpoint, f"text_config.{key}" if key in nested else key, says)
    places = {"quantization_config": checkpoint.config, "text_config.quantization_config": nested}
    told = {where: part["quantization_config"] for where, part in places.items()
            if part.get("quantization_config") is not None}  # fmt: skip
    for where, value in told.items():
        if not isinstance(value, Mapping):
            raise _bad(checkpoint, where, _got(value, "an object with a quant_method"))
    if checkpoint.quantization_file:
        return _check_quantization(checkpoint, "", checkpoint.quantization)
    where = next((where for where, value in told.items() if value), next(iter(told), ""))
    return _check_quantization(checkpoint, f"{where}.", told[where]) if told else ""


def _check_quantization(checkpoint: Checkpoint, where: str, raw: Mapping[str, Any]) -> str:
    for name in ("quant_method", "quant_algo"):
        if not isinstance(raw.get(name), str | None):
            raise _bad(checkpoint, f"{where}{name}", _got(raw[name], "a name"), checkpoint.quantization_file)
    if says := quantization.unsized(raw):
        return f"{where}{says}"
    for key, says in _quantization_faults(raw):
        raise _bad(checkpoint, f"{where}{key}", says, checkpoint.quantization_file)
    return ""


def told_of_sizes(checkpoint: Checkpoint, found: Weights, unsized: str, pp: int, with_roofline: bool) -> list[str]:
    """What a reader must know of the weights' sizes. Raises BadCheckpoint where neither config.json (`unsized` is what
    `check` said) nor the headers tell them."""
    missing, problem = checkpoint.shards_missing, checkpoint.problem
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    lost = f"missing in the checkpoint: {missing[0]}{more}" if missing else ""
    doubts = [text for text in (problem.located if problem else "", lost, found.doubt) if text]
    caveat = [found.caveat] if found.caveat else []
    if not unsized:
        return [f"{text}; sizes are computed from config.json" for text in doubts] + caveat
    why = ""
    if found.source != "headers":
        why = doubts[0] if doubts else "--pp wants those of each layer" if pp > 1 else "there are none beside it"
    elif with_roofline:
        why = "--roofline wants those of one expert"
    if why:
        name = checkpoint.quantization_file or checkpoint.config_file
        advice = f"only the headers of all safetensors shards could tell the weights' sizes: {why}"
        raise BadCheckpoint(checkpoint.path / name, unsized, advice)
    return [f"{unsized}: the weights are the bytes that the safetensors headers tell, nothing checks them", *caveat]


def _bad(checkpoint: Checkpoint, key: str, says: str, name: str = "") -> BadCheckpoint:
    sentence = f"{key} is missing" if says == MISSING else f"{key}: {says}"
    return BadCheckpoint(checkpoint.path / (name or checkpoint.config_file), sentence, _ADVICE)


def _got(value: Any, wanted: str) -> str:
    return f"got {shown_value(value)}, wanted {wanted}"


def _faults(config: Mapping[str, Any]) -> Iterator[Fault]:
    """In the order in which they are worth telling; later ones may rely on there being no earlier one."""
    minimax = str(config.get("model_type", "")).startswith("minimax_m2")
    yield from faults(config, ("vocab_size", *(_MINIMAX if minimax else ())))
    for name in (*_POSITIVE, *_OR_ZERO):
        value, least = config.get(name), int(name in _POSITIVE)
        if value is not None and not (is_size(value) or (type(value) is int and value == least == 0)):
            yield name, _got(value, f"a whole number between {least} and {MOST}")
    for name in _FLAGS:
        if not isinstance(config.get(name), bool | None):
            yield name, _got(config[name], "true or false")
    for name in ("torch_dtype", "dtype"):
        value = config.get(name)
        if value is not None and (not isinstance(value, str) or value.removeprefix("torch.") not in TYPES):
            yield name, _got(value, f"one of {', '.join(TYPES)}")
    yield from _expert_faults(config, minimax)
    yield from _attention_faults(config)


def _expert_faults(config: Mapping[str, Any], minimax: bool) -> Iterator[Fault]:
    for names in (EXPERTS, TOP_K, INNER):
        told = [name for name in names if config.get(name) is not None]
        for name in told[1:]:
            if config[name] != config[told[0]]:
                yield name, _got(config[name], f"{config[told[0]]}, as {told[0]} has")
    experts_key, experts = _told(config, EXPERTS)
    top_key, top = _told(config, TOP_K)
    inner_key, inner = _told(config, INNER)
    layers, dense = config["num_hidden_layers"], config.get("first_k_dense_replace") or 0
    if not experts and (minimax or top):
        needs = f"{top_key} is {top}" if top else "the model is a mixture of experts"
        yield _absent(config, experts_key, f"a whole number between 1 and {MOST}: {needs}")
    if not experts and config.get("moe_intermediate_size") and not any(name in config for name in EXPERTS):
        yield experts_key, MISSING
    if experts and not 1 <= top <= experts:
        yield _absent(config, top_key, f"a whole number between 1 and the {experts} of {experts_key}")
    if not inner and (not experts or dense or not config.get("moe_intermediate_size")):
        yield _absent(config, inner_key, f"a whole number between 1 and {MOST}")
    if dense > layers:
        yield "first_k_dense_replace", _got(dense, f"at most the {layers} of num_hidden_layers")


def _attention_faults(config: Mapping[str, Any]) -> Iterator[Fault]:
    hidden, layers, heads = (config[name] for name in NEEDED)
    if config.get("kv_lora_rank"):
        if config.get("qk_rope_head_dim") is None:
            yield _absent(config, "qk_rope_head_dim", "a whole number: kv_lora_rank is told")
    else:
        kv_heads = config.get("num_key_value_heads") or heads
        if heads % kv_heads:
            yield "num_key_value_heads", _got(kv_heads, f"a divisor of the {heads} of num_attention_heads")
        if config.get("head_dim") is None and hidden % heads:
            wanted = f"a number, as hidden_size {hidden} does not divide by num_attention_heads {heads}"
            yield "head_dim", _got(None, wanted)
    for name in KINDS:
        kinds = config.get(name)
        if not kinds:
            continue
        if not isinstance(kinds, list) or len(kinds) < layers:
            got = f"a list of {len(kinds)}" if isinstance(kinds, list) else shown_value(kinds)
            yield name, f"got {got}, wanted a list of the {layers} of num_hidden_layers"
        elif len(kinds) == layers and not of_attention(kinds):
            yield name, "got no layer of attention, wanted one at least: a plan is made of its KV"


def _told(config: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, int]:
    """The name that a config uses for a size, and the size; (the usual name, 0) where it tells none."""
    name = next((name for name in names if config.get(name) is not None), "")
    return (name, config[name]) if name else (next((name for name in names if name in config), names[0]), 0)


def _absent(config: Mapping[str, Any], name: str, wanted: str) -> Fault:
    return name, _got(config[name], wanted) if name in config else MISSING


def _quantization_faults(raw: Mapping[str, Any]) -> Iterator[Fault]:
    for where, part in quantization.weight_parts(raw):
        for name in _BITS:
            if name in part and not (type(part[name]) is int and (1 <= part[name] <= 8 or part[name] == 16)):
                yield f"{where}{name}", _got(part[name], "a whole number between 1 and 8, or 16")
        whole = quantization.is_integer(raw, part)
        for name in _GROUPS:
            value = part.get(name)
            if value is not None and not _is_group(value, whole):
                wanted = f"-1 (one group a row) or a whole number between 1 and {_MOST_GROUP}"
                yield f"{where}{name}", _got(value, wanted)
        for name in ("sym", "symmetric", "zero_point"):
            if part.get(name) is not None and not isinstance(part[name], bool):
                yield f"{where}{name}", _got(part[name], "true or false")
        for name in ("type", "data_type"):
            if part.get(name) is not None and not isinstance(part[name], str):
                yield f"{where}{name}", _got(part[name], "the name of a type, as int or float")
    block = raw.get("weight_block_size")
    if block is not None and quantization.pair(block) is None:
        yield "weight_block_size", _got(block, f"two whole numbers between 1 and {_MOST_GROUP}, or null")
    for name in ("desc_act", "lm_head"):
        if raw.get(name) is not None and not isinstance(raw[name], bool):
            yield name, _got(raw[name], "true or false")


def _is_group(value: Any, whole: bool) -> bool:
    """Floats have 0 for one scale a tensor, and a pair for blocks; neither is counted by it."""
    if not whole and (quantization.pair(value) is not None or (type(value) is int and value == 0)):
        return True
    return type(value) is int and (value == -1 or 1 <= value <= _MOST_GROUP)
