"""Whether the public address leads to the proxy: it is asked from here as a client would ask it, without a key."""

import dataclasses
from contextlib import closing
from typing import NamedTuple

from deepseek_cursor_proxy.cli.doctor.finding import Finding, failed, good, skipped
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import ProxyError
from deepseek_cursor_proxy.json_codec import decode_upstream_json
from deepseek_cursor_proxy.upstream.client import UpstreamClient
from deepseek_cursor_proxy.upstream.destination import Destination

NAME = "tunnel"
_CONNECT_SECONDS = 4.0
_ANSWER_SECONDS = 5.0
_MAX_ANSWER_BYTES = 1000
# The proxy wants none for this path.
_NO_KEY = "none"
_HEALTHY = {"ok": True}


class TunnelFacts(NamedTuple):
    """`is_ours` whether a proxy of ours answered; `problem` what did in its place."""

    url: str
    is_ours: bool
    problem: str = ""


def public_urls(config: ProxyConfig, running_url: str | None) -> list[str]:
    """The address of the running tunnel, and those of public_hosts that name one host."""
    own = [f"https://{host}" for host in config.public_hosts if not host.startswith("*")]
    return list(dict.fromkeys([*([running_url.rstrip("/")] if running_url else []), *own]))


def look(url: str, config: ProxyConfig) -> TunnelFacts:
    config = dataclasses.replace(
        config, connect_timeout=_CONNECT_SECONDS, request_timeout=_ANSWER_SECONDS, retry_budget=0
    )
    destination = Destination(f"{url}/healthz", "the tunnel", "the tunnel", "GET")
    try:
        with (
            closing(UpstreamClient(config)) as client,
            closing(client.send_to(destination, b"", _NO_KEY, None)) as response,
        ):
            if response.status != 200:
                return TunnelFacts(url, is_ours=False, problem=f"something else answers, with {response.status}")
            is_ours = decode_upstream_json(response.read(_MAX_ANSWER_BYTES)) == _HEALTHY
    except ProxyError as error:
        return TunnelFacts(url, is_ours=False, problem=error.message.partition(". ")[0])
    except ValueError:
        is_ours = False
    return TunnelFacts(url, is_ours, "" if is_ours else "something else answers")


def judge(facts: TunnelFacts) -> Finding:
    if facts.is_ours:
        return good(NAME, f"{facts.url} leads to the proxy; Cursor needs {facts.url}/v1")
    remedy = "start the proxy and its tunnel again, and paste the URL that it prints into Cursor"
    return failed(NAME, f"{facts.url} does not lead to the proxy: {facts.problem}", remedy)


def judge_absent(*, is_running: bool) -> Finding:
    where = "the running proxy has none" if is_running else "no proxy with one runs"
    return skipped(NAME, f"{where}; only clients that call from elsewhere need one, as Cursor does")
