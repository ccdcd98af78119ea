"""The README says what the program does: its settings table, flags, quoted texts and links are checked against it."""

import configparser
import json
import plistlib
import re
import subprocess
import sys
import unittest
from pathlib import Path

from deepseek_cursor_proxy import __version__
from deepseek_cursor_proxy.config import ENVIRONMENT_PREFIX, SETTINGS, settings_table
from deepseek_cursor_proxy.reasoning.notices import NOTICE_LINE
from tests.support.harness import running_proxy

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

PRINT_TABLE = 'python -c "from deepseek_cursor_proxy.config import settings_table; print(settings_table())"'

# Flags that are no settings.
OTHER_FLAGS = {"--config", "--clear-reasoning-cache", "--new", "--version", "--help"}
OTHER_FLAGS |= {"--quick", "--soak", "--json", "--against", "--upstream-port"}
# Flags of other programs, as the README names them.
FOREIGN_FLAGS = {"--strict", "--user", "--now"}

# The system users of a Debian image, from base-passwd.
DEBIAN_USERS = {"root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy"}
DEBIAN_USERS |= {"www-data", "backup", "list", "irc", "_apt", "nobody"}


def block(language: str, start: str) -> str:
    """The one code block in that language that starts so."""
    [found] = re.findall(rf"^```{language}\n({re.escape(start)}.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(found)


class ReadmeTest(unittest.TestCase):
    def test_the_settings_table_is_the_declared_one(self) -> None:
        table = README.partition("<!-- settings -->")[2].partition("<!-- /settings -->")[0].strip()
        self.assertTrue(
            table == settings_table(),
            "the settings table in README.md is out of date; put between <!-- settings --> and <!-- /settings --> "
            f"what this prints:\n\n    {PRINT_TABLE}\n",
        )

    def test_every_flag_it_names_exists(self) -> None:
        known = {each.flag for each in SETTINGS}
        known |= {each.flag.replace("--", "--no-") for each in SETTINGS if each.can_be_negated}
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README))
        self.assertEqual(named - known - OTHER_FLAGS - FOREIGN_FLAGS, set())

    def test_every_environment_variable_it_names_exists(self) -> None:
        named = set(re.findall(rf"{ENVIRONMENT_PREFIX}[A-Z_]+", README))
        self.assertEqual(named - {each.environment for each in SETTINGS}, set())

    def test_its_units_are_well_formed_and_bring_the_proxy_back(self) -> None:
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(block("ini", "[Unit]"))
        self.assertEqual("always", unit["Service"]["Restart"])
        self.assertTrue(unit["Service"]["ExecStart"].endswith("python3 -m deepseek_cursor_proxy"))
        agent = plistlib.loads(block("xml", "<?xml").encode())
        self.assertTrue(agent["KeepAlive"] and agent["RunAtLoad"])
        self.assertEqual(["-m", "deepseek_cursor_proxy"], agent["ProgramArguments"][-2:])
        self.assertEqual(0o077, agent["Umask"])

    def test_its_dockerfile_runs_the_proxy_as_a_user_that_debian_does_not_have(self) -> None:
        steps = dict(re.findall(r"^([A-Z]+) (.+)$", block("dockerfile", "FROM"), re.MULTILINE))
        self.assertEqual(["python", "-m", "deepseek_cursor_proxy"], json.loads(steps["ENTRYPOINT"])[:3])
        user = steps["USER"]
        self.assertNotIn(user, DEBIAN_USERS)
        self.assertRegex(README, rf"RUN useradd -m {user} && install -d -m 700 -o {user} -g {user} {steps['VOLUME']}\n")
        self.assertIn(f"-v deepseek-cursor-proxy:{steps['VOLUME']} ", README)

    def test_its_health_check_asks_the_port_of_the_proxy(self) -> None:
        steps = dict(re.findall(r"^([A-Z]+) (.+)$", block("dockerfile", "FROM"), re.MULTILINE))
        script = json.loads(steps["HEALTHCHECK"].removeprefix("CMD "))[2]
        self.assertIn(f", {steps['EXPOSE']}, ", script)
        with running_proxy("http://127.0.0.1:9/v1") as url:
            probe = script.replace(steps["EXPOSE"], url.rpartition(":")[2])
            self.assertEqual(0, subprocess.run([sys.executable, "-c", probe], timeout=30).returncode)
        gone = subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL, timeout=30)
        self.assertNotEqual(0, gone.returncode)

    def test_it_quotes_the_notice_as_the_proxy_writes_it(self) -> None:
        self.assertIn(f"`{NOTICE_LINE}`", README)

    def test_its_newest_changes_are_of_this_version(self) -> None:
        self.assertEqual(re.findall(r"^### ([0-9.]+)$", README, re.MULTILINE)[0], __version__)
        self.assertIn(f"deepseek-cursor-proxy {__version__} is running.", README)

    def test_its_links_lead_somewhere(self) -> None:
        titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
        for target in re.findall(r"\]\(([^)]+)\)", README):
            with self.subTest(target=target):
                if target.startswith("#"):
                    self.assertIn(target[1:], anchors)
                elif not target.startswith("https://"):
                    self.assertTrue((ROOT / target).is_file())


if __name__ == "__main__":
    unittest.main()
