"""The real proxy in this process, on a port of its own, with a memory that ends with it."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer
from deepseek_cursor_proxy.storage.reasonings import ReasoningStore


@contextmanager
def local_proxy(config: ProxyConfig) -> Iterator[str]:
    """Serve as long as the context lasts; the base URL."""
    address = ("127.0.0.1", 0)
    with closing(ReasoningStore(":memory:")) as store, DeepSeekProxyServer(address, DeepSeekProxyHandler) as proxy:
        proxy.config, proxy.reasoning_store = config, store
        # The interval is how long shutdown may wait for the accepting loop to look up.
        accepting = threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}/v1"
        finally:
            proxy.shutdown()
            accepting.join()
