"""The HTTP server: accepts connections, reads requests from them and sends the replies.

Other folders, and programs outside, import DeepSeekProxyServer and DeepSeekProxyHandler from here.
"""

from deepseek_cursor_proxy.server.proxy_server import DeepSeekProxyHandler, DeepSeekProxyServer

__all__ = ["DeepSeekProxyHandler", "DeepSeekProxyServer"]
