"""The laws over chats that move between upstreams: every host's dialect, every API, two callers with the same chat.

Exactness, no foreign reasoning, nothing lost, a stable prefix at each upstream.
"""

import contextlib
import http.client
import itertools
import random
from typing import Any

from deepseek_cursor_proxy.conversation import Message
from deepseek_cursor_proxy.deepseek.rules import FILLER
from deepseek_cursor_proxy.reasoning import thinking_blocks
from tests.fake_deepseek import Answer, Call, Failure, FakeDeepSeek
from tests.fake_deepseek.dialects import DIALECTS
from tests.laws.test_chats import SocketWorld
from tests.support.apis import APIS, Api, ApiReply, ApiTestCase, Json
from tests.support.generated_chats import Chat
from tests.support.harness import RunningProxy
from tests.support.histories import TOOLS
from tests.support.laws import check_law
from tests.support.width import width

HOSTS = ("deepseek", *DIALECTS)
MODEL = "deepseek-v4-pro"
KEYS = ("sk-one", "sk-two")


class MovingTestCase(ApiTestCase):
    def hosts(self, **settings: Any) -> RunningProxy:
        """A proxy in front of a fake of each host, all of which have answered once: some are learned by that."""
        self.fakes = {host: self.enterContext(FakeDeepSeek(host=host)) for host in HOSTS}
        own = {MODEL: "deepseek-ai/DeepSeek-V4-Pro"}
        tables = {
            host: {"base_url": fake.url, "host": host, "models": [MODEL] if host == "deepseek" else own}
            for host, fake in self.fakes.items()
        }
        proxy = self.proxy(upstreams=tables, **settings)
        for host in HOSTS:
            self.round_trip(proxy, {"model": f"{host}/{MODEL}", "messages": [{"role": "user", "content": "q"}]})
        return proxy

    def assert_none_refused(self) -> None:
        for host, fake in self.fakes.items():
            self.assertEqual([], fake.refused, host)


class TestMovingChats(MovingTestCase):
    def test_the_laws_hold_on_chats_that_change_hosts_with_every_request(self) -> None:
        for form, seed in itertools.product((thinking_blocks.COLLAPSIBLE, None), range(width(1, 4))):
            proxy = self.hosts(display_reasoning=form is not None)
            with contextlib.closing(http.client.HTTPConnection(*proxy.address)) as connection:
                world = _MovingWorld(seed, self.fakes, connection, form)
                for _ in range(width(20, 150)):
                    world.step()
            self.assert_none_refused()

    def test_every_api_finds_its_reasoning_at_every_other_host(self) -> None:
        proxy, pairs = self.hosts(display_reasoning="off"), [*itertools.permutations(HOSTS, 2)]
        few = random.Random(5).sample(pairs, width(5, len(pairs)))
        check_law(itertools.product(few, APIS), lambda case: self._move(proxy, *case))
        self.assert_none_refused()

    def _move(self, proxy: RunningProxy, hosts: tuple[str, str], api: Api) -> None:
        """Two callers with the same chat word for word begin it at one host, and go on at another."""
        number = sum(len(fake.seen) for fake in self.fakes.values())
        call = _call(number)
        first, second = (self.fakes[host] for host in hosts)
        chats = {}
        for key in KEYS:
            first.answer(Answer(reasoning=f" {key} thinks\n\n「{number}」 ", content="Looking.", calls=(call,)))
            chats[key] = self.ask(proxy, api, f"Question {number}.", key=key, model=f"{hosts[0]}/{MODEL}")
        for key, reply in chats.items():
            self.ask(proxy, api, _continued(api, number, reply, call), key=key, model=f"{hosts[1]}/{MODEL}")
            turns = [each for each in second.accepted[-1]["messages"] if each["role"] == "assistant"]
            self.assertEqual([f" {key} thinks\n\n「{number}」 "], [each["reasoning_content"] for each in turns])

    def test_fail_over_in_the_middle_of_a_chat_loses_nothing_on_any_api(self) -> None:
        """The chat names no upstream; the one that it is at refuses to go on."""
        proxy = self.hosts(display_reasoning="off")
        for number, api in enumerate(APIS):
            with self.subTest(api):
                before = {host: len(fake.seen) for host, fake in self.fakes.items()}
                call = _call(number)
                for fake in self.fakes.values():
                    fake.answer(Answer(reasoning=f"thought {number}", content="Looking.", calls=(call,)))
                reply = self.ask(proxy, api, f"Question {number}.")
                (home,) = (host for host, fake in self.fakes.items() if len(fake.seen) > before[host])
                for fake in self.fakes.values():
                    fake.forget()
                self.fakes[home].answer(Failure(402, "Insufficient Balance"))
                self.ask(proxy, api, _continued(api, number, reply, call))
                (refuge,) = (host for host, fake in self.fakes.items() if fake.accepted)
                self.assertNotEqual(home, refuge)
                (turn,) = (each for each in self.fakes[refuge].accepted[0]["messages"] if each["role"] == "assistant")
                self.assertEqual(f"thought {number}", turn["reasoning_content"])


def _call(number: int) -> Call:
    return Call(f"call_00_{number:024x}", TOOLS[0]["function"]["name"], '{"path":"a.py"}')  # type: ignore[index]


def _continued(api: Api, number: int, reply: ApiReply, call: Call) -> list[Json]:
    """The history of the next request, as a client sends it back that keeps no reasoning."""
    return [api.user(f"Question {number}."), *reply.turn(keeps_thinking=False), *api.results([(call.id, "ok")])]


class _MovingWorld(SocketWorld):
    """The world of generated chats, in which every request goes to a host drawn by lot."""

    def __init__(
        self, seed: int, fakes: dict[str, FakeDeepSeek], connection: http.client.HTTPConnection, form: Any
    ) -> None:
        super().__init__(seed, fakes["deepseek"], connection, form)
        self._fakes = fakes
        # What each host has of each chat; the prefix is cached by host.
        self._sent: dict[int, dict[str, list[Any]]] = {}

    def exchange(self, chat: Chat, said: Message) -> dict[str, Any]:
        host = self.rng.choice([*self._fakes])
        sent = self._sent.setdefault(id(chat), {})
        if not chat.sent:
            # The client changed the history.
            sent.clear()
        chat.sent = sent.get(host, [])
        payload = self.ask(self._fakes[host], chat, said, model=f"{host}/{MODEL}")
        # Only DeepSeek gets a filler for reasoning that is unknown.
        unknown = {"reasoning_content": FILLER}
        messages = [{**unknown, **each} if each["role"] == "assistant" else each for each in payload["messages"]]
        sent[host] = messages
        return {**payload, "messages": messages}
