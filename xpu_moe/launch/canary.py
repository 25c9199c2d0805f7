"""Does the server answer, and answer soundly? /health alone proves nothing: an engine can be healthy and die at the
first request.

Asked: one completion twice (greedy tokens must be the same, log-probabilities finite), one chat request, and where the
model is a real one a sum whose result is known.
"""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROMPT = "The first ten prime numbers are"
QUESTION = "What is 17 + 25? Answer with the number alone."
ANSWER = "42"
TOKENS = 16
_NO_ANSWER = (OSError, ValueError, http.client.HTTPException)  # the last: it ended in the middle of an answer


class CanaryFailed(Exception):
    """The server answered wrongly or not at all; the message is one line."""


@dataclass
class Result:
    """What was answered. `token_ids` is empty where the server does not tell them."""

    completion: str = ""
    chat: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    arithmetic: str | None = None
    identical: bool = True
    seconds: float = 0.0


class Client:
    """A client of the OpenAI API at `url` for the model `name`."""

    def __init__(self, url: str, name: str, key: str = "", timeout: float = 600) -> None:
        self._url, self._name, self._key, self._timeout = url, name, key, timeout

    def health(self) -> bool:
        """Whether the port answers at all."""
        try:
            with _OPENER.open(f"{self._url}/health", timeout=2) as answer:
                return answer.status == 200
        except _NO_ANSWER:
            return False

    def first_model(self) -> str:
        """The name of the first model that is served."""
        found = self._ask("GET", "/v1/models", None)
        try:
            return str(found["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise CanaryFailed(f"{self._url}/v1/models: an answer without a model") from None

    def completion(self, prompt: str, tokens: int) -> Mapping[str, Any]:
        """Greedy completion with log-probabilities: {text, token_ids, logprobs}."""
        body = {
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "ignore_eos": True,
            "return_token_ids": True, "seed": 0,
        }  # fmt: skip
        choice = _choice(self._ask("POST", "/v1/completions", body))
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        return {"text": str(choice.get("text", "")), "token_ids": choice.get("token_ids") or [], "logprobs": logprobs}

    def chat(self, question: str, tokens: int, ignore_eos: bool = False) -> str:
        """The answer to one chat message; reasoning counts where there is nothing else."""
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": tokens, "temperature": 0, "seed": 0}
        choice = _choice(self._ask("POST", "/v1/chat/completions", body | ({"ignore_eos": True} if ignore_eos else {})))
        message = choice.get("message") or {}
        parts = [message.get(name) for name in ("content", "reasoning", "reasoning_content")]
        return next((str(part) for part in parts if part), "")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps({"model": self._name, **body}).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with _OPENER.open(request, timeout=self._timeout) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise CanaryFailed(f"{path}: HTTP {error.code}: {_message(error)}") from None
        except _NO_ANSWER as error:
            raise CanaryFailed(f"{path}: {getattr(error, 'reason', None) or error}") from None


# No proxy: the server is on this machine or named by its address.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(client: Client, *, real: bool) -> Result:
    """All questions; CanaryFailed with the first that failed. `real` models must also add two numbers."""
    first, second = (client.completion(PROMPT, TOKENS) for _ in range(2))
    result = Result(first["text"], token_ids=list(first["token_ids"]), logprobs=list(first["logprobs"]))
    if not result.logprobs:
        raise CanaryFailed("completion: no log-probabilities in the answer")
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in result.logprobs):
        raise CanaryFailed(f"completion: a log-probability is not finite: {result.logprobs}")
    if (first["text"], first["token_ids"]) != (second["text"], second["token_ids"]):
        result.identical = False
        raise CanaryFailed(
            f"completion: the same greedy request gave two answers: {_shown(first)} and then {_shown(second)}"
        )
    result.chat = client.chat("Hello, who are you?", TOKENS, ignore_eos=True)
    if not result.chat:
        raise CanaryFailed("chat: an empty answer")
    if real:
        # A reasoning model thinks aloud first; its thoughts are short for a sum.
        result.arithmetic = client.chat(QUESTION, 512)
        if ANSWER not in result.arithmetic:
            raise CanaryFailed(f"arithmetic: {QUESTION!r} was answered {result.arithmetic[-200:]!r}, wanted {ANSWER}")
    return result


def _shown(answer: Mapping[str, Any]) -> str:
    return repr(answer["token_ids"] or answer["text"])


def _choice(answer: Any) -> Mapping[str, Any]:
    try:
        return answer["choices"][0]
    except (KeyError, IndexError, TypeError):
        raise CanaryFailed(f"an answer without a choice: {str(answer)[:200]}") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read())
        return str(found.get("error", {}).get("message", found))[:300]
    except (*_NO_ANSWER, AttributeError):
        return str(error.reason)
