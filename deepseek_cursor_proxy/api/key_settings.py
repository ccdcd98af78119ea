"""The setting in which a client keeps its API key, for an error about that key.

The path and the User-Agent alone decide which client it is, because the key is checked before the body is read.
"""

import re

from deepseek_cursor_proxy.http1.messages import HttpRequest

_CURSOR = "In Cursor: Settings, Models, OpenAI API Key."
_CURSOR_AZURE = "In Cursor: Settings, Models, Azure OpenAI, API Key."
_CLAUDE_CODE = "Claude Code sends ANTHROPIC_AUTH_TOKEN, which counts here, and ANTHROPIC_API_KEY; unset the second."
_CODEX = "Codex sends the environment variable that env_key of its model provider names (in ~/.codex/config.toml)."
_ANTHROPIC = "Anthropic's SDKs send ANTHROPIC_AUTH_TOKEN as a bearer token, which counts, and ANTHROPIC_API_KEY."
_OPENAI = "OpenAI's SDKs send OPENAI_API_KEY."
_ANY = "It is one of your client's settings."

# Products at the beginning of a User-Agent or after another product. Their names are bounded: without that, 64 kB of
# " codex" took 3.5 s, and a request needs no key to get here.
_AGENTS = tuple(
    (re.compile(rf"(?:\A|[\s(;,]){product}", re.IGNORECASE), setting)
    for product, setting in (("cursor/", _CURSOR), ("claude-cli/", _CLAUDE_CODE), (r"codex[\w -]{0,40}/", _CODEX))
)
_SDK = re.compile(r"\A(?:Async)?(?:Azure)?OpenAI/", re.IGNORECASE)


def key_setting(request: HttpRequest) -> str:
    """A sentence that says where the client of a request takes its key from."""
    agent = request.header("user-agent") or ""
    for product, setting in _AGENTS:
        if product.search(agent):
            return _CURSOR_AZURE if setting is _CURSOR and "/openai/deployments/" in request.path else setting
    if "/messages" in request.path or request.header("anthropic-version") is not None:
        return _ANTHROPIC
    if "/responses" in request.path or request.header("x-stainless-lang") is not None or _SDK.search(agent):
        return _OPENAI
    return _ANY
