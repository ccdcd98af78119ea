"""The composition root: the only file that names the features, and puts core and features together.

To take a feature away, delete its folder and its name here: what it has for others is collected by its name. Its
settings in `config/settings.py` do nothing then, and CONTRIBUTING says what else may go.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deepseek_cursor_proxy.api.routes import CORE_ROUTES, Routes
from deepseek_cursor_proxy.config import ProxyConfig

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services
    from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

# Opened and started in this order, closed in the reverse order; first those that the others use.
FEATURES = (
    "request_log",
    "redis",
    "tokens",
    "usage",
    "keys",
    "responses",
    "choices",
    "web_search",
    "written_calls",
    "passthrough",
    "sessions",
    "status_line",
    "response_cache",
    "traces",
)
# These have nothing to open.
UNOPENED = (
    "dashboard",
    "messages",
)


_MODULES = [import_module(f"deepseek_cursor_proxy.features.{name}") for name in (*UNOPENED, *FEATURES)]


def _collect(constant: str) -> list[Any]:
    """What the `__init__.py` of each feature has under this name."""
    return [each for module in _MODULES for each in getattr(module, constant, ())]


ROUTES = Routes([*CORE_ROUTES, *_collect("ROUTES")], _collect("REFUSALS"), _collect("PREFIXES"))
# Paths of the admin listener besides its own; the first that matches counts.
ADMIN_ROUTES = _collect("ADMIN_ROUTES")
COMMANDS = _collect("COMMANDS")
STORED = _collect("STORED")
CLEARED = _collect("CLEARED")
START_CHECKS = _collect("START_CHECKS")
DOCTOR_CHECKS = _collect("DOCTOR_CHECKS")


def has(feature: str) -> bool:
    return feature in (*UNOPENED, *FEATURES)


def build(config: ProxyConfig, reasoning_store: "ReasoningStore") -> "Services":
    # Imported late: most of the program is not needed to listen, nor to name the models.
    from deepseek_cursor_proxy.exchange.services import Services

    services = Services.build(config, reasoning_store)
    for name in FEATURES:
        services = import_module(f"deepseek_cursor_proxy.features.{name}.feature").open(services)
    return services.start()
