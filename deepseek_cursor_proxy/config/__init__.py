"""The configuration of the proxy.

    settings        every setting with default, limits and help: change a timeout or add a setting there
    declaration     what a setting declares, and how its value is parsed and printed
    sources         the sources of values: defaults, file, environment, flags; the template and the table for people
    loaded_config   all declarations, and a ProxyConfig with the origin of each value
    values          addresses, names and prices: their rules
    access_keys, https_proxy, tunnels, upstreams    settings whose rules fill a file

All folders import ProxyConfig from here; `cli`, `admin` and `doctor` also import the modules above.
Building a ProxyConfig touches no file and no network; only `LoadedConfig.load` reads a file.
"""

from deepseek_cursor_proxy.config.settings import ProxyConfig

__all__ = ["ProxyConfig"]
