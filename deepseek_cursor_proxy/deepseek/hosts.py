"""The hosts that serve DeepSeek's models, and how each differs from DeepSeek: add a host to HOSTS, nowhere else.

A Host says under which name reasoning goes back (its ReasoningForm) and which fields switch thinking on and off;
`tests/fake_deepseek/dialects` has the sources of these facts. Answers are read under every name, whatever the host
(`chat_api.read_reasoning`). Other hosts work as DeepSeek does, with the form that their answers show
(`exchange/upstreams.py`). This file imports nothing of the package: `GET /models` needs it.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class ReasoningForm(Enum):
    """How a host writes reasoning in its answers, and takes it back."""

    CONTENT = "reasoning_content"
    REASONING = "reasoning"
    # A list of objects, which goes back whole and in order. Without it the text goes back as `reasoning`.
    DETAILS = "reasoning_details"
    # Inside the content: a server without a reasoning parser.
    THINK = "think"
    NONE = "none"


# Whether to think, and DeepSeek's name of the effort (low, high, max) -> the fields of the request for both.
ThinkingFields = Callable[[bool, str], Mapping[str, Any]]


class Host(NamedTuple):
    """One host. `options` are raw fields that the configuration adds to every request."""

    name: str
    form: ReasoningForm
    thinking_fields: ThinkingFields
    # Base URLs at these domains and their subdomains belong to this host.
    domains: tuple[str, ...] = ()
    # It refuses a history without `reasoning_content`, so a filler is sent where none is known.
    requires_reasoning: bool = False
    # An answer without reasoning means that the model did not think; other hosts may have left the reasoning out.
    silence_means_no_thinking: bool = False
    # It takes DeepSeek's own `prefix` and `user_id`; other hosts get `user_id` as OpenAI's `user`.
    has_extensions: bool = False
    # It may run DeepSeek's own tools, as web search.
    runs_server_tools: bool = False
    # The form that its answers show replaces the declared one.
    is_learning: bool = False
    options: Mapping[str, Any] = MappingProxyType({})


def _deepseek_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    # DeepSeek has refused an effort beside disabled thinking.
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort} if thinking else _OFF


def _ark_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    # Its efforts end at high.
    return {"thinking": {"type": "enabled"}, "reasoning_effort": _up_to_high(effort)} if thinking else _OFF


def _openrouter_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    return {"reasoning": {"effort": _XHIGH.get(effort, effort)} if thinking else {"enabled": False}}


def _template_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    # The template of DeepSeek V4 has the efforts high and max (vLLM's recipe).
    return {"chat_template_kwargs": {"thinking": thinking, **({"reasoning_effort": effort} if thinking else {})}}


def _sglang_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    return {**_template_fields(thinking, effort), "separate_reasoning": True}


def _siliconflow_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    budget = {"thinking_budget": _BUDGETS.get(effort, _BUDGETS["high"])} if thinking else {}
    return {"enable_thinking": thinking, **budget}


def _fireworks_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    # It takes `reasoning_effort` or `thinking`, not both; without the history it drops the reasoning of earlier turns.
    if not thinking:
        return {"reasoning_effort": "none"}
    return {"reasoning_effort": _XHIGH.get(effort, effort), "reasoning_history": "preserved"}


def _together_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    return {"reasoning": {"enabled": thinking}, **({"reasoning_effort": _up_to_high(effort)} if thinking else {})}


def _no_fields(thinking: bool, effort: str) -> Mapping[str, Any]:
    return {}


def _up_to_high(effort: str) -> str:
    return "high" if effort == "max" else effort


_OFF = {"thinking": {"type": "disabled"}}
_XHIGH = {"max": "xhigh"}
# SiliconFlow takes 128 to 32768 tokens.
_BUDGETS = {"low": 4096, "high": 16384, "max": 32768}

DEEPSEEK = Host(
    "deepseek",
    ReasoningForm.CONTENT,
    _deepseek_fields,
    ("deepseek.com",),
    requires_reasoning=True,
    silence_means_no_thinking=True,
    has_extensions=True,
    runs_server_tools=True,
)
# The host of any other base URL: it gets DeepSeek's fields, as gateways to DeepSeek expect.
UNKNOWN = DEEPSEEK._replace(name="auto", domains=(), silence_means_no_thinking=False, is_learning=True)
HOSTS = (
    DEEPSEEK,
    Host("openrouter", ReasoningForm.DETAILS, _openrouter_fields, ("openrouter.ai",)),
    # `reasoning` since vLLM 0.11.2.
    Host("vllm", ReasoningForm.REASONING, _template_fields),
    Host("sglang", ReasoningForm.CONTENT, _sglang_fields),
    Host("siliconflow", ReasoningForm.CONTENT, _siliconflow_fields, ("siliconflow.cn", "siliconflow.com")),
    Host("fireworks", ReasoningForm.CONTENT, _fireworks_fields, ("fireworks.ai",)),
    Host("ark", ReasoningForm.CONTENT, _ark_fields, ("volces.com", "bytepluses.com")),
    Host("together", ReasoningForm.REASONING, _together_fields, ("together.ai", "together.xyz")),
    # Nothing but OpenAI's own fields; reasoning goes back only in a form that came.
    Host("plain", ReasoningForm.NONE, _no_fields, is_learning=True),
)


def beta_url(host: Host, base_url: str) -> str | None:
    """The base URL of DeepSeek's beta path, which `prefix` and strict functions need; None where there is none."""
    base_url = base_url.rstrip("/")
    if base_url.endswith("/beta"):
        return base_url
    return f"{base_url.removesuffix('/v1')}/beta" if host.name == DEEPSEEK.name else None


@lru_cache(64)
def choose(name: str, base_url: str) -> Host:
    """The host with this name; `auto` chooses it by the domain of the base URL."""
    if name != "auto":
        return next(host for host in HOSTS if host.name == name)
    address = f".{urlsplit(base_url).hostname or ''}"
    return next((host for host in HOSTS if any(address.endswith(f".{domain}") for domain in host.domains)), UNKNOWN)
