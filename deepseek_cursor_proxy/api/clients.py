"""Which client sends a request: its name, its id of the chat, whether it gets thinking blocks in the text, where it
keeps its key, and whether one of its sub-agents asks.

For `display_reasoning = "auto"`: some clients act on the text of an answer: they write its code fences to files or run
them. Others show `reasoning_content` themselves. Neither gets the block; every client that is not in the table does.
The User-Agent and the headers of an SDK decide, in this order:

    1. Cursor's own User-Agent or body    block
    2. an agent of the table              no block
    3. Azure's path as Cursor uses it     block
    4. an SDK of the table                no block
    5. anything else                      block

Nothing else depends on that: a chat can continue in another client with the same reasoning.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from deepseek_cursor_proxy.http1.messages import HttpRequest
from deepseek_cursor_proxy.json_codec import as_list, as_object

# Clients that get no block, each with its marker: a product of its User-Agent, or the header of an SDK. Behind it the
# version that was seen to send it; "source" where its source was read, not run.
AGENTS = (
    # They show `reasoning_content` in a place of their own.
    ("Qwen Code", "QwenCode/"),  # 0.24.4
    ("opencode", "opencode/"),  # 1.18.33
    ("Kilo Code", "Kilo-Code/"),  # 7.8 (source)
    ("Roo Code", "RooCode/"),  # 3.51 (source)
    ("Crush", "Charm-Crush/"),  # 0.97 (source)
    ("Kimi CLI", "KimiCLI/"),  # 1.40 (source)
    ("Droid", "factory-cli/"),  # 0.232 (source)
    ("Zed", "Zed/"),  # 0.2 (source)
    ("GitHub Copilot in VS Code", "GitHubCopilotChat/"),  # 0.67.0
    ("LangChain.js", "langchainjs-openai/"),  # 1.5.13
    ("AI SDK", "ai/"),  # 6.0.326
    ("AI SDK's providers, Cline", "ai-sdk/"),  # cline 3.0.65
    ("AI SDK's providers since AI SDK 7", "ai-sdk-provider-utils/"),  # 5.0.79
    # They act on the text of an answer.
    ("Pydantic AI", "pydantic-ai/"),  # 2.31.1
    ("LiteLLM, and aider with `deepseek/…`", "litellm/"),  # 1.106.2
    ("huggingface_hub, such as smolagents' InferenceClientModel", "hf_hub/"),  # 1.33.0
)
# Many programs built on these act on the text.
SDKS = (
    ("OpenAI's packages for Python, .NET, …", "OpenAI/"),  # Python 2.20 to 3.49, JS 5.11 to 7.53
    ("the same, asynchronous", "AsyncOpenAI/"),  # Python 2.54.0
    ("the same, for Azure", "AzureOpenAI/"),  # Python 2.54.0
    ("the same, asynchronous for Azure", "AsyncAzureOpenAI/"),  # Python 3.49.0
    # aider 0.86.2, open-interpreter 0.4.3, smolagents 1.26.0, LangChain 1.7.3, LlamaIndex 0.14.25, instructor 1.17.0,
    # llm 0.32.1, Continue's cn 1.5.47, pi 0.74.2
    ("programs built on them: aider, smolagents, LangChain, `llm`, Continue, pi, …", "x-stainless-lang"),
)

# Claude Code 2.1.325; Codex 0.166, whose sub-agents have threads of their own; opencode 1.18.33; pi 0.74.2.
_CHAT_IDS = ("x-claude-code-session-id", "thread-id", "session-id", "x-session-id", "session_id")

_AZURE_PATH = "/openai/deployments/"
# As Cursor 3.17 sends it; other clients of Azure's path name the version they were written for.
_AZURE_QUERY = "api-version=2024-12-01-preview"


# Where each client keeps its key.
_CURSOR_KEY = "In Cursor: Settings, Models, OpenAI API Key."
_CURSOR_AZURE_KEY = "In Cursor: Settings, Models, Azure OpenAI, API Key."
_CLAUDE_CODE_KEY = "Claude Code sends ANTHROPIC_AUTH_TOKEN, which counts here, and ANTHROPIC_API_KEY; unset the second."
_CODEX_KEY = "Codex sends the environment variable that env_key of its model provider names (in ~/.codex/config.toml)."
_ANTHROPIC_KEY = "Anthropic's SDKs send ANTHROPIC_AUTH_TOKEN as a bearer token, which counts, and ANTHROPIC_API_KEY."
_OPENAI_KEY = "OpenAI's SDKs send OPENAI_API_KEY."
_VSCODE_KEY = "In VS Code: F1, Chat: Manage Language Models, right-click the model, Update API Key."
_ANY_KEY = "It is one of your client's settings."


def shows_thinking(request: HttpRequest, body: Mapping[str, Any]) -> bool:
    """Whether the client of a chat gets thinking blocks in the text."""
    agent = request.headers.get("user-agent") or ""
    if _has_product(_CURSOR, agent):
        return True
    is_agent = _has_product(_AGENTS, agent)
    if not (is_agent or request.headers.get("x-stainless-lang") is not None or _has_product(_SDKS, agent)):
        return True
    return _is_cursor_body(body) or (not is_agent and _is_cursor_azure(request))


def client_name(request: HttpRequest, body: Mapping[str, Any]) -> str:
    """The client as people call it, for the log of requests; the product of another User-Agent; "" if there is none."""
    name = _agent_name(request.headers.get("user-agent") or "")
    return "Cursor" if not name.is_agent and _is_cursor_body(body) else name.text


def chat_id(request: HttpRequest) -> str:
    """The client's id of the chat, from the headers of the clients that send one; "" if there is none.

    A sub-agent of Claude Code has the id of its session and one of its own: its messages are another chat.
    """
    session = next(filter(None, map(request.headers.get, _CHAT_IDS)), "")
    agent = request.headers.get("x-claude-code-agent-id")
    return f"{session}/{agent}" if agent else session


def is_subagent(request: HttpRequest, body: Mapping[str, Any]) -> bool:
    """Whether a sub-agent of Claude Code (2.1.325) or Codex (0.166) asks, or Claude Code for a small job of its own."""
    if request.headers.get("x-claude-code-agent-id") or request.headers.get("x-openai-subagent") == "collab_spawn":
        return True
    return is_small_job(request, body)


def is_small_job(request: HttpRequest, body: Mapping[str, Any]) -> bool:
    """Whether Claude Code asks one question without tools and thinking, as for a title or the check of an action.

    A chat has both. The check begins with a request of 2,112 `max_tokens`, which thinking would use up: with no verdict
    in the answer, Claude Code does not run the action.
    """
    is_small = not body.get("tools") and len(as_list(body.get("messages"))) == 1
    thinks = as_object(body.get("thinking")).get("type") in ("enabled", "adaptive")
    return is_small and not thinks and _has_product(_CLAUDE_CODE, request.headers.get("user-agent") or "")


def is_claude(request: HttpRequest) -> bool:
    """Whether one of Anthropic's programs asks: claude-cli, claude-code (for the list of models), Claude Desktop."""
    return _has_product(_CLAUDE, request.headers.get("user-agent") or "")


class _AgentName(NamedTuple):
    text: str
    # Whether the User-Agent is that of one program, not of an SDK.
    is_agent: bool


# A client sends the same User-Agent with every request.
@lru_cache(32)
def _agent_name(agent: str) -> _AgentName:
    for pattern, name in _PROGRAMS:
        if re.search(pattern, agent):
            return _AgentName(name, True)
    if (listed := re.search(_AGENTS, agent)) is not None:
        return _AgentName(_AGENT_NAMES[listed[1].lower()], True)
    product = _PRODUCT.match(agent)
    text = product[0] if product is not None else ""
    return _AgentName(f"{text} SDK" if text in ("OpenAI", "Anthropic") else text, False)


def _is_cursor_body(body: Mapping[str, Any]) -> bool:
    """Whether Cursor sent this body: its metadata, Responses items in a chat, or its flat patch tool."""
    if "metadata" in body and [name for name in as_object(body["metadata"]) if name.lower().startswith("cursor")]:
        return True
    if body.get("input") is not None and body.get("messages") is None:
        return True
    # A plain loop: most of the many tools of an agent fail at the first test.
    for tool in as_list(body.get("tools")):
        if isinstance(tool, dict) and tool.get("type") == "custom" and tool.get("name") == "ApplyPatch":
            return True
    return False


def _is_cursor_azure(request: HttpRequest) -> bool:
    """Whether a request comes by Azure's path, and from no SDK for another language than Cursor's, JavaScript."""
    by_azure = _AZURE_PATH in request.path and request.headers.get("api-key") is not None
    return by_azure and _AZURE_QUERY in request.query and request.headers.get("x-stainless-lang") in (None, "js")


def key_setting(request: HttpRequest) -> str:
    """A sentence that says where the client of a request takes its key from, for an error about that key.

    The path and the User-Agent alone decide, because the key is checked before the body is read.
    """
    agent = request.headers.get("user-agent") or ""
    if re.search(_CURSOR, agent):
        return _CURSOR_AZURE_KEY if _AZURE_PATH in request.path else _CURSOR_KEY
    if re.search(_CLAUDE_CODE, agent):
        return _CLAUDE_CODE_KEY
    if re.search(_CODEX, agent):
        return _CODEX_KEY
    if re.search(_VSCODE, agent):
        return _VSCODE_KEY
    if "/messages" in request.path or request.headers.get("anthropic-version") is not None:
        return _ANTHROPIC_KEY
    if "/responses" in request.path or request.headers.get("x-stainless-lang") is not None or re.match(_OPENAI, agent):
        return _OPENAI_KEY
    return _ANY_KEY


# A client sends the same User-Agent with every request.
@lru_cache(32)
def _has_product(products: str, agent: str) -> bool:
    return re.search(products, agent) is not None


def _product_pattern(*products: str) -> str:
    """Matches a product of a User-Agent, such as `ai/6.0`, wherever a product may begin.

    `re` compiles it when it is first used: here all took a hundredth of every start.
    """
    return rf"(?i)(?:\A|[\s(;,])({'|'.join(products)})"


_CURSOR = _product_pattern("Cursor/")
_CLAUDE_CODE = _product_pattern("claude-cli/")
_CLAUDE = _product_pattern(r"claude[\w-]{0,40}/")
# The name is bounded: without that, 64 kB of " codex" took 3.5 s, and a request needs no key to get here.
_CODEX = _product_pattern(r"codex[\w -]{0,40}/")
_VSCODE = _product_pattern("GitHubCopilotChat/")
_OPENAI = r"(?i)(?:Async)?(?:Azure)?OpenAI/"
_AGENTS = _product_pattern(*(re.escape(marker) for _, marker in AGENTS))
_SDKS = _product_pattern(*(re.escape(marker) for _, marker in SDKS if marker.endswith("/")))
_PROGRAMS = ((_CURSOR, "Cursor"), (_CLAUDE_CODE, "Claude Code"), (_CODEX, "Codex"))
# By marker. One pattern finds all of them: compiling one for each cost every start 0.6 ms.
_AGENT_NAMES = {marker.lower(): re.split("[,']", name)[0] for name, marker in AGENTS}
# The first product without its version.
_PRODUCT = re.compile(r"[\w.+-]{1,24}")
