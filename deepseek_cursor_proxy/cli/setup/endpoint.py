"""What a client is pointed at, and the machine that it runs on.

An endpoint is the address of the proxy, the variable that holds the key, and the models.

A client names a variable of the environment, so that no file holds a key. `key` is the key itself, for the one that
has no way to name a variable. A machine gets all it looks at from outside, so a test can be on any system.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from deepseek_cursor_proxy.config.values import expand_home
from deepseek_cursor_proxy.deepseek.model_names import MODELS

MODEL, SMALL_MODEL = MODELS
NAMES = {MODEL: "DeepSeek V4 Pro", SMALL_MODEL: "DeepSeek Flash"}
PROVIDER = "deepseek-proxy"

# DeepSeek's own figures.
CONTEXT_TOKENS = 1_048_576
OUTPUT_TOKENS = 393_216

DEEPSEEK_KEY_VARIABLE = "DEEPSEEK_API_KEY"
# Another one for access keys: on this machine, DEEPSEEK_API_KEY is the proxy's own then.
ACCESS_KEY_VARIABLE = "DEEPSEEK_PROXY_API_KEY"
# Stands for the key in what is shown.
HIDDEN_KEY = "sk-…"


@dataclass(frozen=True)
class ProxyEndpoint:
    """`root` is the address without /v1; `key_variable` holds the key that the proxy takes."""

    root: str
    key_variable: str = DEEPSEEK_KEY_VARIABLE
    key: str | None = None

    @property
    def base_url(self) -> str:
        return f"{self.root}/v1"

    @property
    def key_word(self) -> str:
        is_access_key = self.key_variable == ACCESS_KEY_VARIABLE
        return "an access key of the proxy" if is_access_key else "your DeepSeek key"

    def without_key(self) -> "ProxyEndpoint":
        """The same for a screen."""
        return replace(self, key=HIDDEN_KEY if self.key else None)


@dataclass(frozen=True)
class Machine:
    """`system` as in sys.platform; `has_program` whether a command is on the PATH, `exists` whether a path is there."""

    system: str
    home: Path
    environment: Mapping[str, str]
    has_program: Callable[[str], bool]
    exists: Callable[[Path], bool]

    @classmethod
    def here(cls) -> "Machine":
        """The machine that this process runs on; StartupError without a home directory."""
        home = expand_home(Path("~"))
        return cls(sys.platform, home, os.environ, lambda name: shutil.which(name) is not None, Path.exists)

    def folder(self, variable: str, default: Path) -> Path:
        """The folder that a variable names, else the default. An empty variable counts as absent."""
        return Path(self.environment.get(variable) or default)

    @property
    def config_home(self) -> Path:
        """XDG's, which some programs use on every system."""
        return self.folder("XDG_CONFIG_HOME", self.home / ".config")

    @property
    def app_data(self) -> Path:
        """Where programs of this system keep their settings."""
        if self.system == "win32":
            return self.folder("APPDATA", self.home / "AppData" / "Roaming")
        if self.system == "darwin":
            return self.home / "Library" / "Application Support"
        return self.config_home
