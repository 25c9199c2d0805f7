"""One layout serves decode and prefill, or loading is refused with the reasons of both."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from xpu_moe.ops import contract
from xpu_moe.ops.contract import Case, Support
from xpu_moe.serving.choice import Stock, Unservable, choose, choose_routed
from xpu_moe.serving.options import Options


class Fake:
    """A backend for numbers of tokens low..high, which reads one layout."""

    def __init__(self, name, low, high, layout="n_major", nibbles=("u4", "s4"), op="moe_u4"):
        self.op, self.name, self.low, self.high, self.layout, self.nibbles = op, name, low, high, layout, nibbles

    def supports(self, case: Case) -> Support:
        if case.layout != self.layout:
            return Support(False, f"reads {self.layout}")
        if case.nibble not in self.nibbles:
            return Support(False, f"nibble {case.nibble}")
        if max(case.min_tokens, 1) < self.low or case.tokens > self.high:
            return Support(False, f"M {self.low}..{self.high}")
        return Support(True, f"{self.name} fits")


CASE = Case("moe_u4", "xpu", hidden_size=256, intermediate_size=128, nibble="u4", activation="silu", scheme="int4")
READS_S4 = Stock("stock", "n_major", "s4", lambda case: Support(True, "grouped GEMM"))
ABSENT = Stock("stock", "n_major", "s4", lambda case: Support(False, "not installed"))


@pytest.fixture
def room(monkeypatch):
    """The XPU's only room holds the backends that the test gives it."""

    def fill(*backends):
        module = ModuleType("fake_room")
        module.BACKENDS = backends
        monkeypatch.setitem(sys.modules, "fake_room", module)

    monkeypatch.setattr(contract, "ROOMS", {"xpu": ("fake_room",)})
    contract.backends.cache_clear()
    contract.select.cache_clear()
    yield fill
    contract.backends.cache_clear()
    contract.select.cache_clear()


def test_decode_is_ours_and_prefill_stock_on_one_layout(room):
    room(Fake("esimd", 1, 64))
    choice = choose(CASE, Options(), 4096, READS_S4)
    assert (choice.decode.name, choice.prefill.name, choice.limit) == ("esimd", "stock", 64)
    assert (choice.case.layout, choice.case.nibble) == ("n_major", "s4")
    assert choice.prefill.stock and not choice.single


def test_without_stock_kernels_ours_serve_everything(room):
    room(Fake("esimd", 1, 64), Fake("wide", 1, 1 << 20))
    choice = choose(CASE, Options(), 4096, ABSENT)
    assert (choice.decode.name, choice.prefill.name, choice.case.nibble) == ("esimd", "wide", "s4")
    assert choice.single


def test_nothing_for_large_m_is_refused_at_load_with_every_reason(room):
    room(Fake("esimd", 1, 64))
    with pytest.raises(Unservable, match=r"M > 64.*not installed.*M 1\.\.64.*--quantization inc"):
        choose(CASE, Options(), 4096, ABSENT)


def test_no_number_of_tokens_falls_between_decode_and_prefill(room):
    room(Fake("esimd", 1, 64), Fake("from_65", 65, 1 << 20))
    assert choose(CASE, Options(), 4096).prefill.name == "from_65"
    room(Fake("esimd", 1, 64), Fake("from_66", 66, 1 << 20))
    contract.backends.cache_clear()
    contract.select.cache_clear()
    with pytest.raises(Unservable, match=r"from_66: M 66"):
        choose(CASE, Options(), 4096)


def test_a_faster_layout_that_prefill_cannot_read_is_passed_over(room):
    room(Fake("tiled", 1, 64, layout="tiles"), Fake("plain", 1, 1 << 20))
    choice = choose(CASE, Options(), 4096)
    assert (choice.decode.name, choice.prefill.name, choice.case.layout) == ("plain", "plain", "n_major")
    assert any("tiles" in where for where, _ in choice.refused)


def test_a_layout_that_both_read_is_taken_in_written_order(room):
    room(
        Fake("tiled", 1, 64, layout="tiles"), Fake("tiled_bulk", 65, 1 << 20, layout="tiles"), Fake("plain", 1, 1 << 20)
    )
    choice = choose(CASE, Options(), 4096)
    assert (choice.decode.name, choice.prefill.name, choice.case.layout) == ("tiled", "tiled_bulk", "tiles")


def test_a_backend_asked_for_by_name_never_gives_way(room):
    room(Fake("first", 1, 1 << 20), Fake("second", 1, 1 << 20), Fake("narrow", 1, 4))
    choice = choose(CASE, Options(backend="second"), 4096)
    assert choice.decode.name == "second" and choice.decode.by_name and not choice.single
    with pytest.raises(Unservable, match=r"narrow.*M 1\.\.4"):
        choose(CASE, Options(backend="narrow"), 4096)
    with pytest.raises(Unservable, match="unknown for moe_u4"):
        choose(CASE, Options(backend="typo"), 4096)


def test_several_backends_may_share_the_decode_range(room):
    room(Fake("tiny", 1, 4), Fake("small", 5, 64), Fake("wide", 65, 1 << 20))
    choice = choose(CASE, Options(), 4096)
    assert choice.decode.name == "tiny+small" and "M 1..4: tiny" in choice.decode.reason
    assert choice.single and choice.prefill.name == "wide"


def test_one_that_others_would_precede_at_some_m_is_called_by_name(room):
    room(Fake("tiny", 1, 4), Fake("all", 1, 1 << 20))
    choice = choose(CASE, Options(), 4096)
    assert choice.decode.name == "all" and choice.decode.by_name


def test_stock_kernels_serve_decode_where_we_have_none(room):
    room()
    choice = choose(CASE, Options(), 4096, READS_S4)
    assert choice.decode.stock and choice.decode.name == "stock" and "no decode kernel" in choice.decode.reason
    with pytest.raises(Unservable):
        choose(CASE, Options(prefill="own"), 4096, READS_S4)


def test_prefill_can_be_pinned(room):
    room(Fake("ours", 1, 1 << 20))
    assert choose(CASE, Options(prefill="own"), 4096, READS_S4).prefill.name == "ours"
    assert choose(CASE, Options(prefill="stock"), 4096, READS_S4).prefill.name == "stock"
    with pytest.raises(Unservable, match="no kernels that read layout"):
        choose(CASE, Options(prefill="stock"), 4096)


def test_our_decode_kernel_goes_before_stock_kernels_that_read_another_nibble(room):
    room(Fake("u4_only", 1, 64, nibbles=("u4",)), Fake("u4_wide", 65, 1 << 20, nibbles=("u4",)))
    choice = choose(CASE, Options(), 4096, READS_S4)
    assert (choice.decode.name, choice.prefill.name, choice.case.nibble) == ("u4_only", "u4_wide", "u4")
    room(Fake("u4_only", 1, 64, nibbles=("u4",)))
    contract.backends.cache_clear()
    contract.select.cache_clear()
    choice = choose(CASE, Options(), 4096, READS_S4)
    assert choice.decode.stock and choice.prefill.stock and choice.case.nibble == "s4"
    assert "nibble s4" in choice.decode.reason


def test_steps_that_never_exceed_the_limit_need_no_prefill(room):
    room(Fake("esimd", 1, 64))
    choice = choose(CASE, Options(), 32)
    assert choice.limit == 32 and choice.prefill.name == "esimd" and choice.single


def test_the_router_joins_the_decode_call_where_a_backend_has_it(room):
    room(Fake("esimd", 1, 64), Fake("esimd", 1, 64, op="moe_u4_routed"))
    choice = choose(CASE, Options(), 4096, READS_S4)
    way, why = choose_routed(choice, Options(), 4096)
    assert way.name == "esimd" and "in the decode call" in why
    assert choose_routed(choice, Options(routed="off"), 4096)[0] is None
    room(Fake("esimd", 1, 64))
    contract.backends.cache_clear()
    contract.select.cache_clear()
    assert choose_routed(choice, Options(), 4096)[0] is None
    with pytest.raises(Unservable, match="routed"):
        choose_routed(choice, Options(routed="on"), 4096)
