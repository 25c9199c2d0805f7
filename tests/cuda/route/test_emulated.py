"""route_quant.cu itself, emulated on a CPU: every output to the bit, with the backend's own host code in front."""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses

import pytest
import torch

from tests.cuda.emulator.card import Card
from tests.cuda.emulator.emulator import Fault, Memory, of
from xpu_moe.cpu.route_and_quant_fp8 import quantize
from xpu_moe.cpu.route_sigmoid_topk import route
from xpu_moe.cuda.route_quant import launch, tuning
from xpu_moe.ops.route_and_quant_fp8 import Options, Routed, empty

pytestmark = pytest.mark.slow

HIDDEN, EXPERTS = 3072, 256  # MiniMax-M2's
NAN, INF = float("nan"), float("inf")
_expf = ctypes.CDLL(ctypes.util.find_library("m")).expf
_expf.argtypes, _expf.restype = [ctypes.c_float], ctypes.c_float


def sigmoid(logits: torch.Tensor) -> torch.Tensor:
    """With the exponential that the emulated kernel has, the C library's: torch's own differs in the last bit."""
    return 1 / (1 + (-logits).apply_(_expf))


def wanted(x, logits, bias, options: Options) -> Routed:
    """The CPU backends' answer, the weights' sum in the kernel's order."""
    weights, ids = route(logits, bias, options.top_k, False, 1.0)
    if options.renormalize:
        total = torch.zeros(len(weights))
        for column in weights.unbind(1):
            total = total + column
        weights = weights / (total + 1e-20)[:, None]
    codes, scales = quantize(x, options.group_size, options.scale_ue8m0, options.padded_hidden_size)
    return Routed(weights * options.scale, ids, codes, scales)


def arguments(tokens: int, hidden: int = HIDDEN, experts: int = EXPERTS, dtype=torch.bfloat16, seed: int = 0):
    """x, logits and bias on a grid whose scores lie apart: only equal ones tie."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=draw) * torch.randn(tokens, 1, generator=draw).exp()
    logits = torch.randint(-512, 512, (tokens, experts), generator=draw) / 256
    return x.to(dtype), logits, torch.randint(-64, 64, (experts,), generator=draw) / 256


@pytest.fixture
def card(monkeypatch) -> Card:
    monkeypatch.setattr(torch, "sigmoid", sigmoid)
    return Card(monkeypatch, static_shared=4 * (512 * 4 + 32 * 2) + 64)


def rows(name: str, tensor: torch.Tensor, writable: bool = False) -> dict[str, Memory]:
    """The elements of a tensor and nothing that lies between its rows."""
    if tensor.is_contiguous():
        return {name: of(tensor, writable)}
    if tensor.dim() == 2 and tensor.stride(0) == 1:
        return rows(name, tensor.T, writable)
    return {f"{name}[{i}]": of(row, writable) for i, row in enumerate(tensor)}


def memory(x, logits, bias, out: Routed) -> dict[str, Memory]:
    found = {**rows("x", x), **rows("logits", logits)} | ({} if bias is None else {"bias": of(bias)})
    for name, tensor in zip(Routed._fields, out):
        found |= rows(name, tensor, True)
    return found


def same(found: Routed, right: Routed) -> None:
    """Bit for bit; else the first difference of the first output that differs."""
    for name, a, b in zip(Routed._fields, found, right):
        bits = torch.uint8 if a.dtype == torch.float8_e4m3fn else torch.int32
        differ = (a.contiguous().view(bits) != b.contiguous().view(bits)).nonzero()
        if len(differ):
            at = tuple(differ[0].tolist())
            raise AssertionError(f"{name}{list(at)}: got {a[at].item()}, wanted {b[at].item()}; {len(differ)} differ")


def check(card: Card, x, logits, bias, options: Options, seeds=(0, 1), out: Routed | None = None, **more) -> Routed:
    """Run for every seed and hold every bit against the CPU's; the last result."""
    right = wanted(x, logits, bias, options)
    for seed in seeds:
        made = out or empty(x, options)
        for tensor in made:
            tensor.view(torch.uint8 if tensor.element_size() == 1 else torch.int32).fill_(-1 & 0x7F)
        launch.runner(x, logits, bias, options, **more)(x, logits, bias, made)
        card.synchronize(memory(x, logits, bias, made), seed)
        same(made, right)
    return made


# ---- the published shapes
@pytest.mark.parametrize("layout", ("row_major", "column_major"))
@pytest.mark.parametrize("ue8m0", (False, True))
def test_every_small_number_of_tokens(card, layout, ue8m0):
    for tokens in range(1, 10):
        options = Options(8, scale_layout=layout, scale_ue8m0=ue8m0)
        check(card, *arguments(tokens, seed=tokens), options, seeds=(tokens, tokens + 20))


@pytest.mark.parametrize(("tokens", "layout"), ((64, "column_major"), (300, "row_major")))
def test_larger_numbers_of_tokens(card, tokens, layout):
    check(card, *arguments(tokens), Options(8, scale_layout=layout, scale=2.5), seeds=(1,))


@pytest.mark.parametrize("row", {(c.unroll, c.spread): c for c in tuning.TABLE}.values(), ids=lambda c: f"{c.tokens}")
def test_every_row_of_the_tuning_table(card, row):
    for tokens in (1, 13, 67):
        check(card, *arguments(tokens), Options(8, scale_ue8m0=True), seeds=(2,), choice=row)


@pytest.mark.parametrize("parts", ("route", "quant"))
def test_either_half_alone_writes_its_own_outputs_only(card, parts):
    x, logits, bias = arguments(7)
    options, right = Options(8), wanted(x, logits, bias, Options(8))
    out = empty(x, options)
    for tensor in out:
        tensor.view(torch.uint8).fill_(0x7F)
    launch.runner(x, logits, bias, options, parts=parts)(x, logits, bias, out)
    written = out[:2] if parts == "route" else out[2:]
    names = Routed._fields[:2] if parts == "route" else Routed._fields[2:]
    inputs = {"logits": of(logits), "bias": of(bias)} if parts == "route" else {"x": of(x)}
    card.synchronize(inputs | {name: of(tensor, True) for name, tensor in zip(names, written)}, 3)
    for a, b in zip(written, right[:2] if parts == "route" else right[2:]):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_routing_as_an_operator_of_its_own(card):
    _, logits, bias = arguments(9)
    options = Options(8, False, 2.0)
    weights, ids = launch.route(logits, bias, options)
    card.synchronize({"logits": of(logits), "bias": of(bias), "weights": of(weights, True), "ids": of(ids, True)}, 5)
    right = route(logits, bias, 8, False, 2.0)
    assert torch.equal(weights, right[0]) and torch.equal(ids, right[1])


# ---- sizes, dtypes and strides that nobody published
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
ODD = {
    "no multiple of a group, padded": (5, 3000, 33, BF16, F32, F32, Options(3, padded_hidden_size=3136)),
    "no multiple of eight": (3, 301, 100, BF16, F16, BF16, Options(5, False)),
    "the most experts, the largest groups": (3, 520, 512, F16, F32, F32, Options(32, group_size=256)),
    "one expert, one value": (5, 1, 1, F32, BF16, F16, Options(1, scale_ue8m0=True)),
    "float32": (5, 1000, 64, F32, F16, F32, Options(4, group_size=64, scale_layout="column_major")),
    "small groups": (9, 96, 256, F16, BF16, None, Options(8, group_size=32, padded_hidden_size=136)),
    "more groups than blocks of them": (2, 130, 40, BF16, F32, F32, Options(8, padded_hidden_size=1024)),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_sizes_and_dtypes(card, name):
    tokens, hidden, experts, x_type, logits_type, bias_type, options = ODD[name]
    x, logits, bias = arguments(tokens, hidden, experts, x_type)
    bias = None if bias_type is None else bias.to(bias_type)
    check(card, x, logits.to(logits_type), bias, options)


@pytest.mark.parametrize("shift", (0, 1))
def test_strided_rows_in_and_out(card, shift):
    """`shift`: the rows begin where no 16-byte access may."""
    tokens = 5
    x, logits, bias = arguments(tokens, 640, 128)
    wide_x, wide_logits = torch.full((tokens, 664), NAN, dtype=x.dtype), torch.full((tokens, 132), NAN)
    wide_x[:, shift : 640 + shift], wide_logits[:, shift : 128 + shift] = x, logits
    plain = empty(x, Options(4))
    codes = torch.empty((tokens, 656), dtype=torch.uint8)[:, shift : 640 + shift].view(torch.float8_e4m3fn)
    scales = torch.empty((tokens, 9))[:, :5]
    out = Routed(plain.topk_weights, plain.topk_ids, codes, scales)
    check(card, wide_x[:, shift : 640 + shift], wide_logits[:, shift : 128 + shift], bias, Options(4), out=out)


# ---- values that nobody expects
def test_equal_scores_go_to_the_lowest_expert(card):
    x, _, _ = arguments(16, 128)
    draw = torch.Generator().manual_seed(1)
    logits = torch.stack([torch.randint(0, 1 + i % 8, (EXPERTS,), generator=draw).float() for i in range(16)])
    logits[3, 8:16], logits[4, [255, 3, 77]] = 9.0, 9.0  # within a lane, across lanes
    check(card, x, logits, torch.zeros(EXPERTS), Options(8))
    check(card, x, logits, None, Options(8))


def test_infinities_and_nan_among_logits_and_bias(card):
    x, logits, bias = arguments(12, 128)
    logits[0, ::2], logits[1, 5:], logits[2] = -INF, -INF, -INF
    logits[3, ::3], logits[4, 4:], logits[5] = NAN, NAN, NAN
    logits[6, 7], logits[7, [9, 200]], logits[8, :] = INF, INF, INF
    logits[9], logits[10] = -88.5, torch.linspace(-104, -80, EXPERTS)  # scores down to where nothing is left
    logits[11, ::2] = -100.0
    check(card, x, logits, bias, Options(8))
    check(card, x, logits, torch.zeros(EXPERTS), Options(8, False))
    odd = bias.clone()
    odd[1::2], odd[4], odd[6] = -INF, INF, NAN
    check(card, x, logits, odd, Options(8))


@pytest.mark.parametrize("ue8m0", (False, True))
@pytest.mark.parametrize("dtype", (BF16, F32))
def test_odd_activations(card, dtype, ue8m0):
    x, logits, bias = arguments(9, 384, 32, dtype)
    x[0, 3], x[0, 200], x[1, 7], x[1, 9], x[2, 128:256] = NAN, INF, INF, -INF, NAN
    x[3], x[4], x[5, :128] = 0.0, -0.0, -1e-12
    x[6, 1:], x[6, 0] = 1e-30, 3e38
    x[7, :128], x[7, 128:256], x[7, 256:] = torch.linspace(0, 448, 128).to(dtype), 3.3e38, 1e-38
    check(card, x, logits, bias, Options(2, scale_ue8m0=ue8m0))


def test_quotients_are_rounded_once_over_the_whole_range_of_numbers(card):
    """Groups of every size from 2^-40 to 2^120, with values at and beside the middle between two codes."""
    draw = torch.Generator().manual_seed(2)
    size = torch.randint(-40, 121, (24, 1), generator=draw).float().exp2()
    x = (torch.rand(24, 1024, generator=draw) * 2 - 1) * size
    codes, scales = quantize(x, 128, False)
    middle = (codes.float() * 1.0625).view(24, 8, 128) * scales[:, :, None]
    beside = torch.where(torch.rand(middle.shape, generator=draw) < 0.5, middle, torch.nextafter(middle, 2 * middle))
    _, logits, bias = arguments(24, 1, 32)
    for given in (x, beside.view(24, 1024)):
        check(card, given, logits, bias, Options(2), seeds=range(3))


# ---- the tests can fail
SCORES_LATE = "    __syncwarp();\n    float total", "    float total"
ANY_TIE = "if (__builtin_expect(select(key, index, chosen), 0))", "if (select(key, index, chosen), false)"
PLANTED = {  # the source, what becomes of it, what the machine says (None: nothing, but the outputs differ)
    "scores read before the warp has written them": (*SCORES_LATE, "race in shared memory"),
    "a column too many": ("column + GROUP / 2 < HIDDEN", "column + GROUP / 2 <= HIDDEN", "outside every tensor"),
    "a token too many": ("if (token < tokens)", "if (token <= tokens)", "outside every tensor"),
    "ties to any lane": (*ANY_TIE, None),
    "a quotient without its correction": ("fmaf(-fmaf(quotient, s, -x), r, quotient)", "quotient", None),
    "a reciprocal without its step": ("return fmaf(fmaf(-d, r, 1.0f), r, r);", "return r;", None),
    "amax without a lane": ("step = LANES / 2;", "step = LANES / 4;", None),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(card, name):
    old, new, said = PLANTED[name]

    def edit(unit):
        assert unit.text.count(old) == 1
        return dataclasses.replace(unit, text=unit.text.replace(old, new))

    card.edit = edit
    x, logits, bias = arguments(7, 320)
    logits[2, 3:40] = 3.0
    with pytest.raises(Fault if said else AssertionError, match=said):
        check(card, x, logits, bias, Options(8), seeds=range(4))
