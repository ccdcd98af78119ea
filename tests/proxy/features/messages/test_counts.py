"""count_tokens: answered without a call to DeepSeek."""

from tests.fake_deepseek import Answer
from tests.support.messages_client import PATH, TOOLS, Json, MessagesTestCase, assistant, user

COUNT = f"{PATH}/count_tokens"


class TestCounting(MessagesTestCase):
    def count(self, *messages: Json, path: str = COUNT, **more: object) -> int:
        reply = self.send(self.running, {"model": "claude-opus-4-5", "messages": list(messages), **more}, path=path)
        self.assertEqual((200, {"input_tokens"}), (reply.status, set(reply.value)), reply.body)
        return int(reply.value["input_tokens"])

    def test_count_tokens_grows_with_the_request_and_makes_no_call(self) -> None:
        short = self.count(user("Hello"))
        self.assertGreater(self.count(user("Hello, how are you today?")), short)
        self.assertGreater(self.count(user("Hello"), system="Be brief."), short)
        self.assertGreater(self.count(user("Hello"), tools=TOOLS), short)
        self.assertEqual(short, self.count(user("Hello"), path=f"{COUNT}?beta=true"))
        self.assertEqual([], self.fake.seen)

    def test_thinking_is_counted_where_deepseek_reads_it_even_if_it_was_emptied(self) -> None:
        self.fake.answer(Answer("A long thought. " * 50, "Yes."))
        answer = assistant(self.complete(self.running, tools=TOOLS))
        emptied = [{**block, "thinking": ""} if block["type"] == "thinking" else block for block in answer["content"]]
        whole = self.count(user("q"), answer, user("go on"), tools=TOOLS)
        self.assertEqual(whole, self.count(user("q"), {**answer, "content": emptied}, user("go on"), tools=TOOLS))
        self.assertGreater(whole, 100 + self.count(user("q"), user("Yes."), user("go on"), tools=TOOLS))

    def test_searches_are_counted(self) -> None:
        search = {"type": "web_search_20250305", "name": "web_search"}
        question = user("q")
        self.assertGreater(self.count(question, tools=[search]), self.count(question))
        text = {"type": "text", "text": "Found."}
        use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "words " * 20}}
        found = [{"type": "web_search_result", "url": "u", "title": "words " * 20, "encrypted_content": "x" * 400}]
        result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": found}
        said = [{"role": "assistant", "content": content} for content in ([text], [use, result, text])]
        plain, searched = (self.count(question, each, question, tools=[search]) for each in said)
        self.assertGreater(searched, plain + 100)

    def test_count_tokens_needs_a_key_and_messages(self) -> None:
        reply = self.send(self.running, {"messages": 5}, path=COUNT)
        self.assertEqual((400, "invalid_request_error"), (reply.status, reply.error["type"]))
        reply = self.send(self.running, {"messages": []}, path=COUNT, headers={"x-api-key": ""})
        self.assertEqual((401, "authentication_error"), (reply.status, reply.error["type"]))
