"""Subject: what the checks look at. Values only, so that a test can make up any machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deepseek_cursor_proxy.cli.doctor.running_proxy import AdminFacts
from deepseek_cursor_proxy.cli.doctor.settings_file import Settings
from deepseek_cursor_proxy.cli.doctor.upstreams import NamedKey
from deepseek_cursor_proxy.config import ProxyConfig


@dataclass(frozen=True)
class Subject:
    """The settings with their file, the environment, the user's key, and the proxy that runs with the store.

    `key` is None if there is none, or if the settings have a mistake: it could go to the wrong place then.
    """

    settings: Settings
    config_path: Path
    environment: Mapping[str, str]
    admin: AdminFacts
    key: NamedKey | None = None
    is_live: bool = False

    @property
    def config(self) -> ProxyConfig:
        return self.settings.config
