"""Secret names, secret values, and what stays readable."""

from __future__ import annotations

import json
import shlex

import pytest

from xpu_moe.launch.secrets import MASK, Masker, is_secret_name, masked, of_arguments, of_environment


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "api-key", "AWS_SECRET_ACCESS_KEY", "my_password"])
def test_secret_names(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["tokenizer", "max-num-batched-tokens", "NEOReadDebugKeys", "MONKEY", "ssl-keyfile"])
def test_other_names(name):
    assert not is_secret_name(name)


def test_arguments():
    words = ["serve", "m", "--api-key", "one", "two", "--hf-token=three", "--port", "1"]
    assert of_arguments(words) == ["one", "two", "three"]
    shown = masked(words, Masker())
    assert shown == ["serve", "m", "--api-key", MASK, MASK, f"--hf-token={MASK}", "--port", "1"]


def test_the_longer_of_two_nested_secrets_goes_first():
    masker = Masker(["secret", "secret-and-more"])
    assert masker.text("x secret-and-more y") == f"x {MASK} y"


def test_a_short_value_is_masked_by_name_alone():
    masker = Masker(of_environment({"HF_TOKEN": "1"}))
    assert masker.text("tp 1") == "tp 1" and masker.value("HF_TOKEN", "1") == MASK


@pytest.mark.parametrize("secret", ['se"cret', "se'cret", "se\\cret", "sécret", """all'of "them\\é"""])
@pytest.mark.parametrize("spelt", [str, json.dumps, repr, lambda s: shlex.join([f"--api-key={s}"])])
def test_a_secret_with_quotes_is_masked_however_it_is_spelt(secret, spelt):
    shown = Masker([secret]).text(spelt(f"x {secret} y"))
    assert MASK in shown and "se" not in shown and "cret" not in shown and "them" not in shown
