"""The choice of a tunnel program, by the setting `tunnel`."""

from collections.abc import Mapping

from deepseek_cursor_proxy.cli.tunnel import ngrok
from deepseek_cursor_proxy.cli.tunnel.cloudflared import Cloudflared
from deepseek_cursor_proxy.cli.tunnel.program import Program, find_binary
from deepseek_cursor_proxy.cli.tunnel.ssh import Ssh
from deepseek_cursor_proxy.cli.tunnel.tailscale import Tailscale
from deepseek_cursor_proxy.errors import StartupError

_PROGRAMS: dict[str, type[Program]] = {
    "ngrok": ngrok.Ngrok,
    "cloudflared": Cloudflared,
    "tailscale": Tailscale,
    "ssh": Ssh,
}


def choose(wanted: str, port: int, url: str, environment: Mapping[str, str]) -> Program:
    """The program for a value of `tunnel`; `on` stands for the first that is installed."""
    name, _, host = (_first_installed(environment) if wanted == "on" else wanted).partition(":")
    return Ssh(port, url, host=host) if host else _PROGRAMS[name](port, url)


def _first_installed(environment: Mapping[str, str]) -> str:
    for name in _PROGRAMS:
        # ngrok does nothing without an account; cloudflared and ssh need none.
        if find_binary(name) and (name != "ngrok" or ngrok.has_token(environment)):
            return name
    raise StartupError(f"no tunnel program is installed; cloudflared is the simplest: {Cloudflared.install}")
