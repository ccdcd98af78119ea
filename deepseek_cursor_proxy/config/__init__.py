"""The configuration of the proxy.

    settings        every setting with default, limits and help: change a timeout or add a setting there
    declaration     what a setting declares, and how its value is parsed and printed
    loaded_config   a ProxyConfig from defaults, file, environment and flags, with the origin of each value
    values          addresses, names and prices: their rules
    access_keys, named_keys, https_proxy, upstreams    settings whose rules fill a file

All folders import ProxyConfig from here; `cli` and the features also import the modules above.
Building a ProxyConfig touches no file and no network; only `LoadedConfig.load` reads files.
"""

from deepseek_cursor_proxy.config.settings import ProxyConfig

__all__ = ["ProxyConfig"]
