"""Parts of `python -m xpu_moe.probe p2p`: copies between cards, checked bit by bit, in a watched process."""
