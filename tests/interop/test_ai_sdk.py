"""The AI SDK through the proxy, against the strict fake: a tool loop and a second question by each of its providers."""

from tests.interop.command_line import MODEL, NodeCase

# Pinned: seen to run on Node 20 and 22, though they ask for 22.
PACKAGES = (
    "ai@7.0.169", "@ai-sdk/openai@4.0.114", "@ai-sdk/openai-compatible@3.0.90", "@ai-sdk/deepseek@3.0.56",
    "@ai-sdk/anthropic@4.0.102", "zod@4.6.7",
)  # fmt: skip


class AiSdkTest(NodeCase):
    needs = PACKAGES

    def assert_loop(self, provider: str, *, tells_reasoning: bool = True) -> None:
        for stream in (True, False):
            with self.subTest(provider, stream=stream):
                self.said.clear()
                self.fake.forget()
                url = f"{self.start_proxy()}/v1"
                steps = self.run_script("ai_sdk.mjs", baseURL=url, model=MODEL, provider=provider, stream=stream)
                self.assertEqual([step["finish"] for step in steps], ["tool-calls", "stop", "stop"], self.output)
                self.assertEqual([step["text"] for step in steps], [said.content or "" for said in self.said])
                thoughts = [said.reasoning if tells_reasoning else "" for said in self.said]
                self.assertEqual([step["reasoning"] for step in steps], thoughts)
                self.assertEqual(steps[0]["results"], ["Rain in Rome."])
                self.assert_nothing_lost()

    def test_the_loop_by_each_provider(self) -> None:
        """The provider for OpenAI's own API knows no reasoning in chat completions."""
        self.assert_loop("openai chat", tells_reasoning=False)
        for provider in ("openai responses", "openai-compatible", "deepseek", "anthropic"):
            self.assert_loop(provider)
