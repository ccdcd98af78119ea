"""One chat with tools through the proxy, in this process: against the simulated DeepSeek, or the real one with a key.

The question takes two tools, so there are three requests, of which the last two need the reasoning back. Nothing is
stored: the proxy of the round has its memory alone.
"""

import dataclasses
import http.client
from contextlib import closing
from pathlib import Path

from deepseek_cursor_proxy.cli.demo.cursor import WEATHER_TOOLS, CursorClient
from deepseek_cursor_proxy.cli.demo.small_deepseek import SmallDeepSeek, local_proxy
from deepseek_cursor_proxy.cli.doctor import upstreams
from deepseek_cursor_proxy.cli.doctor.subject import Finding, Level, Subject, failed, good, skipped, warning
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.access_keys import AccessKey, new_key
from deepseek_cursor_proxy.redaction import safe_text

NAME = "tool round"
_QUESTION = "What is the weather like here? Find out where I am with get_location, then ask get_weather, then answer."
_REPORT = "report it, with doctor --report"
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


def check(subject: Subject) -> list[Finding]:
    if not subject.is_live:
        return [play(subject.config)]
    if subject.settings.faults:
        return [skipped(NAME, "no real upstream is asked while the settings have a mistake")]
    if (key := _live_key(subject)) is None:
        remedy = "set DEEPSEEK_API_KEY, or run it in a terminal and type it"
        return [skipped(NAME, "not tried: --live needs a key", remedy)]
    return [play_live(subject.config, key)]


def _live_key(subject: Subject) -> str | None:
    """The key to ask the proxy of the round with; any will do where every upstream has keys of its own."""
    if subject.key is not None and upstreams.is_usable(subject.key, subject.config):
        return subject.key.key
    tables = subject.config.upstreams.values()
    return new_key() if tables and all(table.key_env for table in tables) else None


def play(config: ProxyConfig) -> Finding:
    """Play the round against the simulated DeepSeek."""
    chosen = {name: getattr(config, name) for name in _CHAT_SETTINGS}
    with SmallDeepSeek() as deepseek:
        own = ProxyConfig(upstream_base_url=deepseek.url, retry_budget=0, reasoning_content_path=_MEMORY, **chosen)
        finding = _ask(own, "sk-doctor", is_live=False)
    if finding.level is Level.FAILED or config.thinking == "disabled":
        return finding
    sent = [
        message.get("reasoning_content")
        for message in deepseek.accepted[-1]["messages"]
        if message["role"] == "assistant"
    ]
    if sent != deepseek.thoughts[: len(sent)]:
        return failed(NAME, "the reasoning did not come back unchanged", _REPORT)
    return finding


def play_live(config: ProxyConfig, key: str) -> Finding:
    """Play it against the configured upstreams; it costs a fraction of a cent."""
    own = dataclasses.replace(
        config,
        access_keys=(AccessKey.of(key),),
        keys={},
        reasoning_content_path=_MEMORY,
        sessions_path=_MEMORY,
        record="sessions",
        trace_dir=None,
        verbose=False,
    )
    return _ask(own, key, is_live=True)


def _ask(config: ProxyConfig, key: str, *, is_live: bool) -> Finding:
    try:
        with (
            local_proxy(config) as url,
            closing(CursorClient(url, key=key, model=config.upstream_model, tools=WEATHER_TOOLS)) as cursor,
        ):
            answers = cursor.ask(_QUESTION).answers
        final = answers[-1]
        what = (final.error or {}).get("message", "the answer was cut off")
        problem = None if final.is_whole else safe_text(f"{final.status} {what}", 400)
    except (OSError, http.client.HTTPException, ValueError) as error:
        answers, problem = (), safe_text(error or type(error).__name__)
    whom = "the upstream" if is_live else "the simulated DeepSeek"
    if problem is not None:
        remedy = "look the message up in .github/docs/troubleshooting.md" if is_live else _REPORT
        return failed(NAME, f"through the proxy to {whom}: {problem.replace(key, '***')}", remedy)
    calls = sum(len(answer.calls) for answer in answers)
    if not calls:
        return warning(NAME, f"{whom} answered without calling a tool", "try again, or another model")
    also = "; `--live` asks the real upstream" if not is_live else ""
    return good(NAME, f"{len(answers)} requests, {calls} tool calls with {whom}{also}")
