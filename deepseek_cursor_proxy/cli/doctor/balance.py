"""The balance of an account at DeepSeek: the answer of `GET /user/balance`, checked."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepseek_cursor_proxy.errors import UpstreamFailed
from deepseek_cursor_proxy.json_codec import as_list, as_object
from deepseek_cursor_proxy.redaction import safe_text

BALANCE_PATH = "/user/balance"
_MOST_CURRENCIES = 10


class Balance(NamedTuple):
    """An amount in one currency, and of it what was granted and what was paid in; DeepSeek writes them as text."""

    currency: str
    total: str
    granted: str
    topped_up: str


class Account(NamedTuple):
    """Whether it can be used for calls, and its balances."""

    is_available: bool
    balances: tuple[Balance, ...]


def read_account(body: Mapping[str, Any]) -> Account:
    """Parse an answer of `GET /user/balance`. Raises UpstreamFailed if it is not DeepSeek's."""
    infos = [as_object(info) for info in as_list(body.get("balance_infos"))][:_MOST_CURRENCIES]
    if not isinstance(body.get("is_available"), bool) or "balance_infos" not in body:
        raise UpstreamFailed(
            "The answer has no balance_infos; only DeepSeek's own API has a balance. Check --base-url."
        )
    names = ("currency", "total_balance", "granted_balance", "topped_up_balance")
    balances = [Balance(*(safe_text(info.get(name, "?"), 30) for name in names)) for info in infos]
    return Account(body["is_available"], tuple(balances))
