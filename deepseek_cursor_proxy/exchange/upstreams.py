"""Upstreams: the servers that generations are asked for, each with its host, base URL and name.

Without a table [upstreams] there is one, that of the settings `base_url` and `upstream_host`. How a call is sent is
`upstream/client`'s business, which retries and records it is `upstream_call`'s.
"""

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.conversation import ChatRequest
from deepseek_cursor_proxy.deepseek import hosts
from deepseek_cursor_proxy.deepseek.api import CHAT, UpstreamApi, with_server_tools
from deepseek_cursor_proxy.deepseek.hosts import Host
from deepseek_cursor_proxy.exchange.host_choice import HostChoice
from deepseek_cursor_proxy.storage.reasoning_forms import ReasoningForms
from deepseek_cursor_proxy.upstream.destination import Destination


@dataclass(frozen=True)
class Upstream:
    """One upstream. `name` and `setting` are what error messages call it and point to."""

    name: str
    setting: str
    base_url: str
    host: Host
    host_choice: HostChoice

    @classmethod
    def of_settings(cls, config: ProxyConfig, forms: ReasoningForms) -> "Upstream":
        base_url = config.upstream_base_url.rstrip("/")
        host = hosts.choose(config.upstream_host, base_url)
        # A gateway of unknown kind is called by the name of what it leads to.
        name = "DeepSeek" if host in (hosts.DEEPSEEK, hosts.UNKNOWN) else urlsplit(base_url).hostname or base_url
        if config.host_options:
            host = replace(host, options=config.host_options)
        return cls(name, "--base-url", base_url, host, HostChoice(host, base_url, forms))

    def api(self, wanted: UpstreamApi, request: ChatRequest) -> UpstreamApi:
        """The API to call it with: for chat completions, those of its host."""
        if wanted is not CHAT:
            return wanted
        chat = self.host_choice.chat_api()
        return with_server_tools(chat) if request.server_tools else chat

    def destination(self, path: str, *, is_unversioned: bool = False) -> Destination:
        base_url = self.base_url
        if is_unversioned:
            base_url = base_url.removesuffix("/v1").removesuffix("/beta")
        return Destination(base_url + path, self.name, self.setting)


class Upstreams:
    """The upstreams of a configuration. Called by handler threads."""

    def __init__(self, config: ProxyConfig, forms: ReasoningForms) -> None:
        self._default = Upstream.of_settings(config, forms)

    def choose(self) -> Upstream:
        return self._default
