"""Who serves a layer: decode (M <= limit) and prefill (larger M), on one copy of the weights. Needs no vLLM.

A layout is tried as a whole: both the decode and the prefill way must read it, since a card has no room for a second
copy. The layouts are those that the device's backends declare (`layout`, canonical where they declare none), in the
order in which the backends are written; the first that serves both is taken. Prefill is the stock kernels where there
are some for the layout, else ours. When no layout serves both, loading is refused with every reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from xpu_moe.ops.contract import Case, NoBackend, Selection, Support, backends, select, with_tokens
from xpu_moe.serving.options import Options

CANONICAL = "n_major"


class Unservable(RuntimeError):
    """Nothing serves the layer on one copy of its weights; the message holds every reason."""


@dataclass(frozen=True)
class Stock:
    """Stock kernels for prefill: which layout and nibble they read, and whether they are here. Asked once a layer."""

    name: str
    layout: str
    nibble: str
    support: Callable[[Case], Support]


@dataclass(frozen=True)
class Way:
    """One of the two ways. `backend` prepares the weights (None: stock kernels); `by_name` says that the operator
    alone would pick another backend, so that the name must be passed along."""

    name: str
    reason: str
    backend: Any = None  # a Backend
    by_name: bool = False

    @property
    def stock(self) -> bool:
        return self.backend is None


@dataclass(frozen=True)
class Choice:
    """What was decided for a layer. `case` is the decode case as prepared: its layout and nibble are the layer's."""

    case: Case
    decode: Way
    prefill: Way
    limit: int
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def single(self) -> bool:
        """One operator call serves every M: no branch on the number of tokens is needed."""
        return not (self.decode.stock or self.prefill.stock or self.decode.by_name or self.prefill.by_name)


def choose(case: Case, options: Options, max_tokens: int, stock: Stock | None = None) -> Choice:
    """Decide for a layer described by `case` (canonical layout; tokens and nibble are filled in here).

    `max_tokens` is the largest number of tokens of a step. Raises Unservable.
    """
    limit = min(options.decode_limit, max_tokens)
    refused: list[tuple[str, str]] = []
    # The stock kernels serve every M, slower at decode: they decode too where no layout has a kernel of ours.
    for stock_decodes in (False, True):
        for layout, nibble, kernels in _layouts(case, options, stock):
            laid = replace(case, layout=layout, nibble=nibble)
            try:
                decode, prefill = _ways(laid, options, limit, max_tokens, kernels, stock_decodes)
            except NoBackend as error:
                if not stock_decodes:
                    refused.append((f"{layout} {nibble}", str(error)))
                continue
            before = (*refused, *_asked_before(laid, limit, decode))
            return Choice(with_tokens(laid, limit), decode, prefill, limit, before)
    reasons = "; ".join(f"layout {where}: {why}" for where, why in refused)
    raise Unservable(
        f"no layout of {with_tokens(case, max_tokens).describe()} is served for both M <= {limit} and M > {limit}: "
        f"{reasons}. --quantization inc (or gptq) leaves the checkpoint to vLLM's own kernels"
    )


def choose_routed(choice: Choice, options: Options, max_tokens: int) -> tuple[Way | None, str]:
    """(who serves decode from the router's logits, why), or (None, why vLLM's router routes). Raises Unservable.

    On a CPU the layer is traced, so one backend must serve every M there: no branch on it may be needed.
    """
    case = replace(choice.case, op="moe_u4_routed")
    if options.routed == "off":
        return None, "routed is off"
    if options.routed == "auto" and case.device == "cpu":
        return None, "one call from logits to output saves launches, and a CPU has none"
    try:
        if choice.decode.stock:
            raise NoBackend(case, [(choice.decode.name, "stock kernels take routes, not logits")])
        if case.device == "cpu":
            if not choice.single:
                raise NoBackend(case, [(choice.decode.name, "decode and prefill are not one call")])
            case = with_tokens(case, max_tokens)
        taken = select(case, options.backend or None)
    except NoBackend as error:
        if options.routed == "on":
            raise Unservable(f"routed: {error}") from None
        return None, str(error)
    return Way(taken.name, taken.reason, taken.backend), f"in the decode call: {taken.name}: {taken.reason}"


def _layouts(case: Case, options: Options, stock: Stock | None) -> Iterator[tuple[str, str, Stock | None]]:
    """(layout, nibble, stock kernels that read it) in the order to try."""
    named = options.backend or options.prefill_backend
    found = [getattr(b, "layout", CANONICAL) for b in backends(case.device, case.op) if named in ("", b.name)]
    if stock is not None:
        found.append(stock.layout)
    for layout in dict.fromkeys(found or [CANONICAL]):
        if stock is not None and layout == stock.layout and options.prefill != "own":
            yield layout, stock.nibble, stock
            if options.prefill == "auto" and stock.nibble != case.nibble:
                yield layout, case.nibble, None
        else:
            yield layout, case.nibble, None


def _ways(
    case: Case, options: Options, limit: int, max_tokens: int, stock: Stock | None, stock_decodes: bool
) -> tuple[Way, Way]:
    if max_tokens <= limit and not stock_decodes:
        decode = _own(with_tokens(case, limit), options.backend)
        return decode, replace(decode, reason=f"a step never has more than {max_tokens} tokens")
    prefill = _prefill(case, options, limit, max_tokens, stock)
    try:
        return _own(with_tokens(case, limit), options.backend), prefill
    except NoBackend as error:
        if options.backend or not (prefill.stock and stock_decodes):
            raise
        why = "; ".join(f"{name}: {reason}" for name, reason in error.refused) or "no decode kernel is registered"
        return Way(prefill.name, f"no decode kernel of ours serves the case ({why})"), prefill


def _prefill(case: Case, options: Options, limit: int, max_tokens: int, stock: Stock | None) -> Way:
    wanted = with_tokens(case, max_tokens, limit + 1)
    if options.prefill_backend:
        return _own(wanted, options.prefill_backend)
    if stock is not None:
        support = stock.support(wanted)
        if support.ok:
            return Way(stock.name, support.reason)
        if options.prefill == "stock":
            raise NoBackend(wanted, [(stock.name, support.reason)], stock.name)
        return _or_stock_reason(wanted, stock, support)
    if options.prefill == "stock":
        raise NoBackend(wanted, [("stock", f"vLLM has no kernels that read layout {case.layout}")], "stock")
    return _own(wanted, "")


def _or_stock_reason(case: Case, stock: Stock, support: Support) -> Way:
    try:
        return _own(case, "")
    except NoBackend as error:
        raise NoBackend(case, [(stock.name, support.reason), *error.refused]) from None


def _own(case: Case, name: str) -> Way:
    """Our backend for a range of M: one for all of it, or several, each for a part."""
    try:
        taken = select(case, name or None)
    except NoBackend:
        if name:
            raise
        return _by_tokens(case)
    alone = [_alone(case, tokens) for tokens in _samples(case)]
    return Way(taken.name, taken.reason, taken.backend, by_name=any(other != taken.name for other in alone))


def _by_tokens(case: Case) -> Way:
    """Several backends that read one layout, each serving a part of the range; the operator picks by M."""
    parts: dict[str, tuple[Selection, int, int]] = {}
    for tokens in _samples(case):
        taken = select(with_tokens(case, tokens, tokens))
        first = parts.get(taken.name, (taken, tokens, tokens))[1]
        parts[taken.name] = (taken, first, tokens)
    if not parts:
        raise NoBackend(case, [])
    reason = "; ".join(f"M {low}..{high}: {name}: {s.reason}" for name, (s, low, high) in parts.items())
    return Way("+".join(parts), reason, next(iter(parts.values()))[0].backend)


def _samples(case: Case) -> list[int]:
    """Numbers of tokens at which the dispatcher is asked: both ends, powers of two and their neighbours."""
    low, high = max(case.min_tokens, 1), case.tokens
    found = {low, high}
    power = 1
    while power <= high:
        found |= {tokens for tokens in (power, power + 1) if low <= tokens <= high}
        power *= 2
    return sorted(found)


def _alone(case: Case, tokens: int) -> str:
    try:
        return select(with_tokens(case, tokens, tokens)).name
    except NoBackend:
        return ""


def _asked_before(case: Case, limit: int, decode: Way) -> tuple[tuple[str, str], ...]:
    """Our backends that were asked for decode before the one that was taken."""
    try:
        return select(with_tokens(case, limit), decode.name if decode.by_name else None).refused
    except NoBackend as error:
        return error.refused
