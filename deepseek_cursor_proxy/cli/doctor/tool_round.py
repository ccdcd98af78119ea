"""One chat with tools through the proxy, in this process: against the made-up DeepSeek, or the real one with a key.

The question takes two tools, so there are three requests, of which the last two need the reasoning back. Nothing is
stored: the proxy of the round has its memory alone.
"""

import dataclasses
import http.client
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from deepseek_cursor_proxy.cli.demo.cursor import WEATHER_TOOLS, ClientAnswer, CursorClient
from deepseek_cursor_proxy.cli.demo.small_deepseek import SmallDeepSeek, local_proxy
from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, skipped, warning
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey
from deepseek_cursor_proxy.redaction import safe_text

NAME = "tool round"
_QUESTION = "What is the weather like here? Find out where I am with get_location, then ask get_weather, then answer."
_MEMORY = Path(":memory:")
# What decides how a history is sent; all else of the settings is about other things.
_CHAT_SETTINGS = (
    "thinking",
    "reasoning_effort",
    "display_reasoning",
    "collapsible_reasoning",
    "missing_reasoning_strategy",
    "tool_order",
)


class RoundFacts(NamedTuple):
    """What came of it: requests, calls of tools, the turns with exactly their reasoning (None: not known)."""

    requests: int
    calls: int
    is_whole: bool
    problem: str = ""
    is_restored: bool | None = None


def play(config: ProxyConfig) -> RoundFacts:
    """Play the round against the made-up DeepSeek."""
    chosen = {name: getattr(config, name) for name in _CHAT_SETTINGS}
    with SmallDeepSeek() as deepseek:
        own = ProxyConfig(
            upstream_base_url=deepseek.url, retry_budget=0, reasoning_content_path=_MEMORY, pin_key="never", **chosen
        )
        facts = _ask(own, "sk-doctor", own.upstream_model)
        if config.thinking == "disabled" or not deepseek.accepted:
            return facts
        messages = deepseek.accepted[-1]["messages"]
    sent = [each.get("reasoning_content") for each in messages if each["role"] == "assistant"]
    return facts._replace(is_restored=sent == deepseek.thoughts[: len(sent)])


def play_live(config: ProxyConfig, key: str) -> RoundFacts:
    """Play it against the configured upstreams; it costs a fraction of a cent."""
    own = dataclasses.replace(
        config,
        access_keys=(AccessKey.of(key),),
        reasoning_content_path=_MEMORY,
        sessions_path=_MEMORY,
        record="sessions",
        trace_dir=None,
        verbose=False,
    )
    return _ask(own, key, config.upstream_model)


def _ask(config: ProxyConfig, key: str, model: str) -> RoundFacts:
    answers: tuple[ClientAnswer, ...] = ()
    try:
        with (
            local_proxy(config) as url,
            closing(CursorClient(url, key=key, model=model, tools=WEATHER_TOOLS)) as cursor,
        ):
            answers = cursor.ask(_QUESTION).answers
    except (OSError, http.client.HTTPException, ValueError) as error:
        return RoundFacts(0, 0, is_whole=False, problem=safe_text(error or type(error).__name__).replace(key, "***"))
    final = answers[-1]
    problem = "" if final.is_whole else f"{final.status} {(final.error or {}).get('message', 'the answer was cut off')}"
    calls = sum(len(each.calls) for each in answers)
    return RoundFacts(len(answers), calls, final.is_whole, safe_text(problem, 400).replace(key, "***"))


def judge(facts: RoundFacts, *, is_live: bool) -> Finding:
    whom = "the upstream" if is_live else "the made-up DeepSeek"
    if not facts.is_whole:
        remedy = (
            "look the message up in .github/docs/troubleshooting.md" if is_live else "report it, with doctor --report"
        )
        return failed(NAME, f"through the proxy to {whom}: {facts.problem}", remedy)
    if facts.is_restored is False:
        return failed(NAME, "the reasoning did not come back as it was", "report it, with doctor --report")
    if not facts.calls:
        return warning(NAME, f"{whom} answered and called no tool", "try again; if it stays so, try another model")
    also = "; `--live` asks the real upstream" if not is_live else ""
    return good(NAME, f"{facts.requests} requests, {facts.calls} tool calls with {whom}{also}")


def judge_without_key() -> Finding:
    return skipped(NAME, "not tried: --live needs a key", "set DEEPSEEK_API_KEY, or run it in a terminal and type it")
