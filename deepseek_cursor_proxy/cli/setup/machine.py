"""The machine on which clients are set up: system, home, environment and programs, all given from outside.

It looks at nothing by itself, so a test can be on any system.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """`system` as in sys.platform; `has_program` whether a command is on the PATH, `exists` whether a path is there."""

    system: str
    home: Path
    environment: Mapping[str, str]
    has_program: Callable[[str], bool]
    exists: Callable[[Path], bool]

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
