"""A byte-level tokenizer without merges (any text round-trips) with MiniMax's special tokens and a chat template."""

from __future__ import annotations

import json
from pathlib import Path

BOS, EOS = "]~!b[", "[e~["  # MiniMax-M2's spellings
CHAT_TEMPLATE = (
    "{% for m in messages %}]~!b[{{ m['role'] }}\n{{ m['content'] }}[e~[\n"
    "{% endfor %}{% if add_generation_prompt %}]~!b[ai\n{% endif %}"
)


def write(folder: Path, max_length: int) -> tuple[int, int, int]:
    """Write tokenizer.json and tokenizer_config.json; returns (number of tokens, bos id, eos id)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for special in (BOS, EOS):
        vocabulary[special] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    # Not tokenizer.save: it reports a full disk as a bare Exception.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return len(vocabulary), vocabulary[BOS], vocabulary[EOS]
