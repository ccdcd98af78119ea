"""One question on all three APIs, for the tests of the response cache: its body, and what an answer says."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepseek_cursor_proxy.storage.reasonings import ReasoningStore
from tests.fake_deepseek import Answer, Call
from tests.support import messages_client, responses_client
from tests.support.harness import RawReply, RunningProxy, SocketTestCase, chat_chunks

APIS = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
ANSWER = Answer(
    reasoning="A thought " * 4, content="The answer.", calls=(Call("call_1", "read_file", '{"path": "a"}'),), comments=1
)


def tool(api: str, name: str) -> dict[str, Any]:
    if api == "messages":
        return {"name": name, "description": "", "input_schema": PARAMETERS}
    function = {"name": name, "parameters": PARAMETERS}
    return {"type": "function", **function} if api == "responses" else {"type": "function", "function": function}


def body(api: str, text: str = "q", *, tools: str = "read_file", **fields: Any) -> dict[str, Any]:
    """A question; `tools` are names."""
    declared = [tool(api, name) for name in tools.split()]
    if api == "responses":
        return {"model": "deepseek-v4-pro", "input": text, "tools": declared, **fields}
    chat = {"model": "deepseek-v4-pro", "messages": [{"role": "user", "content": text}], "tools": declared, **fields}
    return chat if api == "chat" else {"max_tokens": 1000, **messages_client.THINKING, **chat}


class Said(NamedTuple):
    """What an answer says, whatever its API, and its tokens."""

    reasoning: str
    text: str
    calls: list[tuple[str, str]]
    tokens: int


def read(api: str, reply: RawReply) -> Said:
    return {"chat": _read_chat, "responses": _read_response, "messages": _read_message}[api](reply)


def _read_chat(reply: RawReply) -> Said:
    if not reply.is_stream:
        value = reply.value
        message = value["choices"][0]["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        return Said(message["reasoning_content"], message["content"], calls, value["usage"]["total_tokens"])
    chunks = chat_chunks(reply.body)
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    calls, names = "", ""
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            names += call["function"].get("name", "")
            calls += call["function"]["arguments"]
    reasoning, text = ("".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content"))
    return Said(reasoning, text, [(names, calls)] if names else [], chunks[-1]["usage"]["total_tokens"])


def _read_response(reply: RawReply) -> Said:
    if reply.is_stream:
        found = responses_client.events(reply.body)
        responses_client.check_stream(found)
        response = found[-1]["response"]
    else:
        response = reply.value
    assert response["status"] == "completed", response
    texts: dict[str, str] = {}
    for item in response["output"]:
        texts[item["type"]] = "".join(responses_client.texts(item))
    calls = [(item["name"], item["arguments"]) for item in response["output"] if item["type"] == "function_call"]
    tokens = response["usage"]["total_tokens"]
    return Said(texts.get("reasoning", ""), texts.get("message", ""), calls, tokens)


def _read_message(reply: RawReply) -> Said:
    events = messages_client.events(reply.body) if reply.is_stream else []
    message = messages_client.add_up_events(events) if reply.is_stream else reply.value
    by_type = {block["type"]: block for block in message["content"]}
    calls = [(by_type["tool_use"]["name"], by_type["tool_use"]["input"])] if "tool_use" in by_type else []
    text = by_type.get("text", {}).get("text", "")
    usage = message["usage"]
    tokens = usage["input_tokens"] + usage["output_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    return Said(by_type.get("thinking", {}).get("thinking", ""), text, calls, tokens)


class CacheTestCase(SocketTestCase):
    """Proxies show no thinking in the text, so that answers compare."""

    def cache_proxy(self, store: ReasoningStore | None = None, **settings: Any) -> RunningProxy:
        return self.proxy(store, **{"display_reasoning": "off", **settings})

    def post(
        self, proxy: RunningProxy, api: str, data: Mapping[str, Any], key: str = "sk-test", **headers: str
    ) -> RawReply:
        """The reply; `headers` with _ for -."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given |= messages_client.VERSION if api == "messages" else {}
        given["Authorization"] = f"Bearer {key}"
        if api == "chat" and data.get("stream"):
            data = {**data, "stream_options": {"include_usage": True}}
        found = responses_client.request(proxy, "POST", PATHS[api], data, given)
        return RawReply(found.status, found.headers, found.body)

    def ask(self, proxy: RunningProxy, api: str, text: str = "q", *, key: str = "sk-test", **fields: Any) -> RawReply:
        """The reply to a question that asks for the cache; it succeeded."""
        reply = self.post(proxy, api, body(api, text, **{"cache": True, **fields}), key)
        self.assertEqual(200, reply.status, reply.body)
        return reply

    def states(self, *replies: RawReply) -> list[str | None]:
        return [reply.headers.get("x-cache") for reply in replies]
