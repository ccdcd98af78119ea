"""A worker process: serves clients on the listener that its supervisor (`serve`) has bound, until that one stops it.

It reads no settings and prints nothing but its lines of the log: settings come over the channel, the first of them with
its setup. It ends as a single proxy does, at SIGTERM, or when its supervisor is gone.
"""

import contextlib
import mmap
import queue
import signal
import socket
import sys
from typing import Any

from deepseek_cursor_proxy.cli import serve
from deepseek_cursor_proxy.cli.store import open_store
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.errors import StartupError
from deepseek_cursor_proxy.net.channel import Channel
from deepseek_cursor_proxy.observers import standard_streams
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer
from deepseek_cursor_proxy.server.shared_state import share


def main(channel: int, listener: int, counts: int) -> int:
    """Serve on these descriptors; the exit code."""
    # The setup, then None when it has to stop. A handler of signals may put into it, because it is reentrant.
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, lambda *_: inbox.put(None))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handlers: dict[str, Any] = {"setup": lambda *setup: inbox.put(setup), "stop": lambda: inbox.put(None)}
    with (
        standard_streams.command_streams(is_shared=True),
        contextlib.closing(Channel(socket.socket(fileno=channel), handlers, lambda: inbox.put(None))) as link,
    ):
        try:
            if (setup := inbox.get()) is not None:
                config, slot, values = setup
                server = DeepSeekProxyServer(("", 0), DeepSeekProxyHandler, socket.socket(fileno=listener))
                server.take_turns(memoryview(mmap.mmap(counts, 0)).cast("I"), slot)
                vars(server).update(values, config=config)
                with _serving(server, link, handlers):
                    link.post("ready")
                    inbox.get()
        except StartupError as error:
            sys.stderr.write(f"deepseek-cursor-proxy: {error}\n")
            return 2
    return 0


def _serving(server: DeepSeekProxyServer, channel: Channel, handlers: dict[str, Any]) -> contextlib.ExitStack:
    """A context in which the server runs."""
    config = server.config
    serve.log_to_stderr(verbose=config.verbose)
    serve.raise_limits_for(config)
    with contextlib.ExitStack() as stack:
        server.reasoning_store = stack.enter_context(open_store(config, must_open=False))
        stack.callback(server.server_close)

        def reconfigure(config: ProxyConfig) -> None:
            if config != server.config:
                server.reconfigure(config)
                serve.log_to_stderr(verbose=config.verbose)

        def measure() -> object:
            # Only here: most proxies are not looked at.
            from deepseek_cursor_proxy.admin import state

            return state.measure(server)

        handlers.update(
            share(server.services(), channel), reload=reconfigure, tunnel=server.set_tunnel_url, measure=measure
        )
        stack.enter_context(serve.run_server(server))
        return stack.pop_all()
