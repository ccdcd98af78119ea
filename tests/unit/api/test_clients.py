import time
import unittest

from deepseek_cursor_proxy.api import clients
from deepseek_cursor_proxy.http1.messages import HttpRequest

CHAT = "/v1/chat/completions"
AZURE = "/openai/deployments/m/chat/completions"
AZURE_VERSION = "api-version=2024-12-01-preview"
PLAIN = {"model": "m", "messages": []}
PYTHON, JS = {"x-stainless-lang": "python"}, {"x-stainless-lang": "js"}

# The User-Agent and the SDK's language as each client sent them to a recorder.
WITHOUT_BLOCK = {
    "openai 2.54.0": ("OpenAI/Python 2.54.0", PYTHON),
    "openai 2.54.0, asynchronous": ("AsyncOpenAI/Python 2.54.0", PYTHON),
    "openai 2.54.0 for Azure": ("AzureOpenAI/Python 2.54.0", PYTHON),
    "openai 7.53.0 for JS": ("OpenAI/JS 7.53.0", JS),
    "an SDK behind a proxy that drops headers": ("OpenAI/Go 1.12.0", {}),
    "LiteLLM 1.106.2 and aider 0.86.2, deepseek/": ("litellm/1.81.10", {}),
    "aider 0.86.2, openai/": ("OpenAI/Python 2.20.0", PYTHON),
    "open-interpreter 0.4.3": ("OpenAI/Python 3.49.0", PYTHON),
    "huggingface_hub 1.33.0": ("unknown/None; hf_hub/1.33.0; python/3.11.7", {}),
    "pydantic-ai 2.31.1": ("pydantic-ai/2.31.1", PYTHON),
    "@langchain/openai 1.5.13": ("langchainjs-openai/1.0.0 ((node/v20.20.2; linux; x64))", JS),
    "ai 6.0.326": ("ai/6.0.326 ai-sdk/provider-utils/4.0.65 runtime/node.js/v20.20.2", {}),
    "@ai-sdk/openai-compatible 2.0.87": (
        "ai-sdk/openai-compatible/2.0.87 ai-sdk/provider-utils/4.0.62 runtime/node.js/v20.20.2",
        {},
    ),
    "@ai-sdk/deepseek 3.0.56 in a stream": ("ai-sdk-deepseek/3.0.56 ai-sdk-provider-utils/5.0.51 node.js/v20.20.2", {}),
    "opencode 1.18.33": ("opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14", {}),
    "qwen-code 0.24.4": ("QwenCode/0.24.4 (linux; x64)", JS),
    "cline 3.0.65": ("ai-sdk/openai-compatible/3.0.37 ai-sdk/provider-utils/5.0.30 runtime/bun/1.3.13", {}),
    "GitHub Copilot in VS Code 1.139": ("GitHubCopilotChat/0.67.0", {}),
    "GitHub's copilot 1.0.102": ("OpenAI/JS 5.20.1", JS),
    "cn 1.5.47, whose class names are minified": ("ls/JS 5.23.2", JS),
}
WITH_BLOCK = {
    "nothing": ("", {}), "curl": ("curl/8.5.0", {}), "urllib": ("Python-urllib/3.11", {}),
    "requests": ("python-requests/2.32.3", {}), "httpx": ("python-httpx/0.28.1", {}), "node's fetch": ("node", {}),
    "a browser": ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36", {}),
    "a name that ends like a known one": ("my-openai/1.0 notai/2", {}), "Cursor": ("Cursor/3.17.21", {}),
    "Cursor with an SDK": ("Mozilla/5.0 Cursor/0.45.0 (darwin)", JS),
    "Cursor in small letters": ("cursor/1.0", PYTHON),
}  # fmt: skip


def request_of(agent: str, headers: dict[str, str], path: str = CHAT, query: str = "") -> HttpRequest:
    return HttpRequest("POST", path, query, {**headers, **({"user-agent": agent} if agent else {})})


class TestNames(unittest.TestCase):
    def test_a_client_is_named_as_people_call_it(self) -> None:
        for agent, name in {
            "claude-cli/2.1.4 (external, cli)": "Claude Code", "codex_cli_rs/0.142.5 (Debian 12.0.0; x86_64)": "Codex",
            "opencode/1.18.33 ai-sdk/provider-utils/4.0.23": "opencode",
            "ai-sdk/openai-compatible/3.0.37 runtime/bun/1.3.13": "AI SDK",
            "ai-sdk-deepseek/3.0.56 ai-sdk-provider-utils/5.0.51": "AI SDK", "litellm/1.81.10": "LiteLLM",
            "Mozilla/5.0 Cursor/0.45.0 (darwin)": "Cursor", "OpenAI/Python 2.54.0": "OpenAI SDK", "curl/8.5.0": "curl",
            "": "", "\x1b[31m": "", "a" * 60: "a" * 24,
        }.items():  # fmt: skip
            self.assertEqual(name, clients.client_name(request_of(agent, {}), PLAIN), agent)

    def test_an_sdk_with_the_body_of_cursor_is_cursor(self) -> None:
        body = {"metadata": {"cursorConversationId": "1"}}
        self.assertEqual("Cursor", clients.client_name(request_of("OpenAI/JS 5.0", JS), body))
        self.assertEqual("opencode", clients.client_name(request_of("opencode/1.18.33", {}), body))


class TestSubagents(unittest.TestCase):
    """As Claude Code 2.1.325 and Codex 0.166 were seen to send them."""

    def test_a_subagent_is_known_by_its_header(self) -> None:
        for headers in ({"x-claude-code-agent-id": "a1"}, {"x-openai-subagent": "collab_spawn"}):
            self.assertTrue(clients.is_subagent(request_of("any/1", headers), PLAIN))
        # Codex compacts the chat itself so, whose prefix is cached under its own model.
        self.assertFalse(clients.is_subagent(request_of("codex_exec/0.166", {"x-openai-subagent": "compact"}), PLAIN))

    def test_a_small_job_of_claude_code_is_one_question_without_tools_and_thinking(self) -> None:
        claude, asked, turn = "claude-cli/2.1.325 (external, cli)", [{"role": "user"}], {"role": "assistant"}
        title = {"messages": asked, "tools": [], "output_config": {"effort": "high"}}
        for body, agent, is_small in (
            (title, claude, True), ({**title, "thinking": {"type": "disabled"}}, claude, True),
            ({**title, "thinking": {"type": "adaptive"}}, claude, False),
            ({**title, "tools": [{"name": "Bash"}]}, claude, False),
            ({**title, "messages": [*asked, turn, *asked]}, claude, False), (title, "curl/8.5.0", False),
        ):  # fmt: skip
            self.assertEqual(is_small, clients.is_subagent(request_of(agent, {}), body), (body, agent))


class TestSigns(unittest.TestCase):
    def test_clients_that_act_on_text_or_show_reasoning_elsewhere_get_no_block(self) -> None:
        for name, (agent, headers) in WITHOUT_BLOCK.items():
            self.assertFalse(clients.shows_thinking(request_of(agent, headers), PLAIN), name)

    def test_unknown_clients_and_cursor_get_the_block(self) -> None:
        for name, (agent, headers) in WITH_BLOCK.items():
            self.assertTrue(clients.shows_thinking(request_of(agent, headers), PLAIN), name)

    def test_every_sign_in_the_table_of_clients_suffices_alone(self) -> None:
        for _, marker in (*clients.AGENTS, *clients.SDKS):
            is_product = marker.endswith("/")
            request = request_of(marker + "1.0", {}) if is_product else request_of("", {marker: "go"})
            self.assertFalse(clients.shows_thinking(request, PLAIN), marker)

    def test_cursor_is_known_by_its_bodies_whatever_its_sdk(self) -> None:
        flat = {"type": "custom", "name": "ApplyPatch", "format": {"type": "grammar"}}
        for body in (
            {**PLAIN, "metadata": {"cursorConversationId": "x"}},
            {**PLAIN, "metadata": {"cursorRequestId": "x"}},
            {"model": "m", "input": "hi"},
            {**PLAIN, "tools": [{"type": "function", "function": {"name": "Read"}}, flat]},
        ):
            for agent, headers in WITHOUT_BLOCK.values():
                self.assertTrue(clients.shows_thinking(request_of(agent, headers), body), body)
        for body in (
            {**PLAIN, "metadata": {"precursor": "x"}},
            {**PLAIN, "metadata": "cursor", "tools": "ApplyPatch", "input": "both"},
            {**PLAIN, "tools": [None, {"type": "custom", "custom": {"name": "ApplyPatch"}}]},
        ):
            self.assertFalse(clients.shows_thinking(request_of("OpenAI/JS 7", JS), body), body)

    def test_azures_path_means_cursor_unless_another_client_is_named(self) -> None:
        key = {"api-key": "sk-x"}
        for agent, headers, query, has_block in (
            ("", key, AZURE_VERSION, True),
            ("AzureOpenAI/JS 6.0", {**key, **JS}, AZURE_VERSION, True),
            ("AzureOpenAI/JS 6.0", {**key, **JS}, "api-version=2025-03-01", False),
            ("AzureOpenAI/JS 6.0", JS, AZURE_VERSION, False),
            ("AzureOpenAI/Python 2.54.0", {**key, **PYTHON}, AZURE_VERSION, False),
            ("QwenCode/0.24.4", {**key, **JS}, AZURE_VERSION, False),
        ):
            request = request_of(agent, headers, AZURE, query)
            self.assertEqual(has_block, clients.shows_thinking(request, PLAIN), (agent, query))


RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
CURSOR, CODEX, CLAUDE = "Cursor/3.17", "codex_exec/0.166.0 (Linux)", "claude-cli/2.1.325 (external, sdk-cli)"
ANTHROPIC = {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}
NAMES = {"Cursor", "VS Code", "Azure", "Codex", "env_key", "Claude Code", "OPENAI_API"} | ANTHROPIC


class TestKeySetting(unittest.TestCase):
    def test_an_error_about_the_key_names_the_setting_of_the_client(self) -> None:
        for path, agent, headers, named in (
            (CHAT, CURSOR, {}, {"Cursor"}),
            (AZURE, CURSOR, {}, {"Cursor", "Azure"}),
            (RESPONSES, CODEX, {}, {"Codex", "env_key"}),
            (RESPONSES, "Codex Desktop/1.2", {}, {"Codex", "env_key"}),
            *((path, "GitHubCopilotChat/0.67.0", {}, {"VS Code"}) for path in (CHAT, RESPONSES, MESSAGES)),
            (MESSAGES, CLAUDE, {}, {"Claude Code"} | ANTHROPIC),
            (MESSAGES, "Anthropic/Python 1.0", {}, ANTHROPIC),
            (MESSAGES, "", {}, ANTHROPIC),
            ("/v1/models", "", {"anthropic-version": "2023-06-01"}, ANTHROPIC),
            (CHAT, "OpenAI/Python 2.54.0", {}, {"OPENAI_API"}),
            (CHAT, "aider", {"x-stainless-lang": "python"}, {"OPENAI_API"}),
            (RESPONSES, "curl/8", {}, {"OPENAI_API"}),
            (CHAT, "curl/8", {}, set()),
            (CHAT, "", {}, set()),
            (CHAT, "NotCursor/1 precursor/2", {}, set()),
        ):
            with self.subTest(path=path, agent=agent):
                sentence = clients.key_setting(HttpRequest("POST", path, headers={"user-agent": agent, **headers}))
                self.assertEqual(named, {name for name in NAMES if name in sentence}, sentence)

    def test_a_long_user_agent_is_searched_in_linear_time(self) -> None:
        for word in (" codex", "codex ", " cursor", " claude-cli", "openai"):
            agent = (word * 65_536)[:65_000]
            began = time.process_time()
            clients.key_setting(HttpRequest("POST", CHAT, headers={"user-agent": agent}))
            self.assertLess(time.process_time() - began, 0.5, word)
