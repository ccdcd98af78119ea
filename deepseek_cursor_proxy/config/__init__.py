"""The configuration of the proxy.

    settings        every setting with default, limits and help: change a timeout or add a setting there
    declaration     what a setting declares, and how its value is parsed and printed
    sources         the sources of values: defaults, file, environment, flags; the template and the table for people
    access_keys, public_hosts, https_proxy    settings with rules of their own

Other folders import the names below from here, `declaration` for errors in settings, `access_keys` and `https_proxy`.
Building a ProxyConfig touches no file and no network; only `ProxyConfig.load` reads a file.
"""

from deepseek_cursor_proxy.config.declaration import ENVIRONMENT_PREFIX, to_toml
from deepseek_cursor_proxy.config.settings import (
    CONFIG_PATH,
    DECLARATIONS,
    SETTINGS,
    TABLES,
    LoadedConfig,
    ProxyConfig,
    settings_table,
    template,
)
from deepseek_cursor_proxy.config.sources import expand_home, lacks_home

__all__ = [
    "CONFIG_PATH",
    "DECLARATIONS",
    "ENVIRONMENT_PREFIX",
    "SETTINGS",
    "TABLES",
    "LoadedConfig",
    "ProxyConfig",
    "expand_home",
    "lacks_home",
    "settings_table",
    "template",
    "to_toml",
]
