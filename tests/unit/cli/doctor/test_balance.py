import unittest
from typing import Any

from deepseek_cursor_proxy.cli.doctor.upstreams import Account, Balance, read_account
from deepseek_cursor_proxy.errors import UpstreamFailed

INFO = {"currency": "CNY", "total_balance": "110.00", "granted_balance": "10.00", "topped_up_balance": "100.00"}


class TestBalance(unittest.TestCase):
    def test_an_account_has_a_balance_in_each_currency(self) -> None:
        body = {"is_available": True, "balance_infos": [INFO, {**INFO, "currency": "USD"}]}
        yuan = Balance("CNY", "110.00", "10.00", "100.00")
        self.assertEqual(Account(True, (yuan, yuan._replace(currency="USD"))), read_account(body))

    def test_odd_answers_are_errors_or_safe_to_print(self) -> None:
        odd: tuple[dict[str, Any], ...] = (
            {}, {"is_available": True}, {"balance_infos": []}, {"error": {"message": "no"}},
        )  # fmt: skip
        for body in odd:
            with self.subTest(str(body)), self.assertRaises(UpstreamFailed):
                read_account(body)
        evil = {"is_available": False, "balance_infos": [{"currency": "\x1b[2J" * 100}, 7, None]}
        account = read_account(evil)
        self.assertFalse(account.is_available)
        self.assertNotIn("\x1b", str(account))
        self.assertLess(len(str(account)), 500)
