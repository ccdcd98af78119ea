"""The configuration of the proxy.

    settings        every setting with default, limits and help: change a timeout or add a setting there
    declaration     what a setting declares, and how its value is parsed and printed
    sources         the sources of values: defaults, file, environment, flags; the template and the table for people
    access_keys, https_proxy, upstreams    settings with rules of their own

All folders import ProxyConfig from here; `cli` also imports the modules above.
Building a ProxyConfig touches no file and no network; only `ProxyConfig.load` reads a file.
"""

from deepseek_cursor_proxy.config.settings import ProxyConfig

__all__ = ["ProxyConfig"]
