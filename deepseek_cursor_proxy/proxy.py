"""The composition root: the only file that imports features, and puts core and features together.

To take a feature away, delete its folder and the lines that name it here; `cli/commands.py` has the lines of its
commands, `config/settings.py` those of its settings.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from deepseek_cursor_proxy.api.routes import CORE_ROUTES, Routes
from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.features import (
    keys,
    messages,
    responses,
    sessions,
    status_line,
    usage,
)

if TYPE_CHECKING:
    from deepseek_cursor_proxy.exchange.services import Services
    from deepseek_cursor_proxy.storage.reasonings import ReasoningStore

ROUTES = Routes(
    [
        *CORE_ROUTES,
        *responses.ROUTES,
        *messages.ROUTES,
        *sessions.ROUTES,
        *status_line.ROUTES,
    ],
    # The first that replies to a failed request decides the shape of the error; without one it has OpenAI's.
    [
        messages.REFUSE,
    ],
    # Fronts of the paths of every API; the report has what they name.
    [
        sessions.PREFIX,
    ],
)
# Paths of the admin listener besides its own; the first that matches counts.
ADMIN_ROUTES = (
    *usage.ADMIN_ROUTES,
    *keys.ADMIN_ROUTES,
    *sessions.ADMIN_ROUTES,
)
# Opened and started in this order, closed in the reverse order; `redis` first, because the others share by it.
FEATURES = (
    "redis",
    "tokens",
    "usage",
    "keys",
    "responses",
    "web_search",
    "written_calls",
    "passthrough",
    "sessions",
    "status_line",
    "response_cache",
    "traces",
)


def build(config: ProxyConfig, reasoning_store: "ReasoningStore") -> "Services":
    # Imported late: most of the program is not needed to listen, nor to name the models.
    from deepseek_cursor_proxy.exchange.services import Services

    services = Services.build(config, reasoning_store)
    for name in FEATURES:
        services = import_module(f"deepseek_cursor_proxy.features.{name}.feature").open(services)
    return services.start()
