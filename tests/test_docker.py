"""The container, by its files, because tests run without Docker: no root, no secret, one place to write, one port."""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

from deepseek_cursor_proxy.config.loaded_config import SETTINGS
from tests.support.harness import running_proxy

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".github" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
OPERATIONS = (ROOT / ".github/docs/operations.md").read_text(encoding="utf-8")

STEPS = re.findall(r"^([A-Z]+) (.+)$", DOCKERFILE, re.MULTILINE)
STEP = dict(STEPS)
DATA = "/home/app/.deepseek-cursor-proxy"

# The system users of a Debian image, from base-passwd.
DEBIAN_USERS = {"root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy"}
DEBIAN_USERS |= {"www-data", "backup", "list", "irc", "_apt", "nobody"}


def compose(path: str) -> list[str]:
    """The value of a key of compose.yaml, or the items of its list; `path` are the keys that lead to it."""
    found: list[str] = []
    keys: list[tuple[int, str]] = []
    for line in COMPOSE.splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        depth = len(line) - len(line.lstrip())
        if text.startswith("- "):
            found += [text[2:].strip('"')] if _path(keys) == path else []
            continue
        key, _, value = text.partition(":")
        keys = [*(each for each in keys if each[0] < depth), (depth, key)]
        found += [value.strip()] if _path(keys) == path else []
    return [each for each in found if each]


def _path(keys: list[tuple[int, str]]) -> str:
    return "/".join(key for _, key in keys)


class DockerfileTest(unittest.TestCase):
    def test_it_runs_as_a_user_that_is_not_root_and_that_debian_does_not_have(self) -> None:
        [(number, name)] = re.findall(r"useradd --create-home --uid (\d+) (\w+)", DOCKERFILE)
        self.assertGreaterEqual(int(number), 1000)
        self.assertNotIn(name, DEBIAN_USERS)
        self.assertEqual(f"{number}:{number}", STEP["USER"])
        self.assertIn(f"install -d -m 700 -o {name} -g {name} {DATA}\n", DOCKERFILE)
        # Nothing is done as root after that.
        after = [step for step, _ in STEPS[STEPS.index(("USER", STEP["USER"])) + 1 :]]
        self.assertFalse({"USER", "RUN", "COPY", "ADD"} & {*after})

    def test_the_build_copies_what_exists_and_needs_no_network(self) -> None:
        copied = [words.split()[0] for step, words in STEPS if step == "COPY"]
        self.assertEqual(["LICENSE", "deepseek_cursor_proxy"], copied)
        for name in copied:
            self.assertTrue((ROOT / name).exists())
        self.assertNotRegex(DOCKERFILE, r"\bpip\b|\bapt|curl|wget|https?://|^ADD ")

    def test_docker_gets_only_what_is_copied(self) -> None:
        rules = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        rules = [rule for rule in rules if not rule.startswith("#")]
        self.assertEqual("*", rules[0])
        self.assertEqual(["!LICENSE", "!deepseek_cursor_proxy"], [rule for rule in rules if rule.startswith("!")])

    def test_every_command_has_the_host_that_can_be_reached(self) -> None:
        """As a variable: a flag of the entry point would come before a command such as `doctor`."""
        self.assertEqual(["python", "-m", "deepseek_cursor_proxy"], json.loads(STEP["ENTRYPOINT"]))
        name, _, value = STEP["ENV"].partition("=")
        [host] = (each for each in SETTINGS if each.environment == name)
        self.assertEqual(("host", "0.0.0.0"), (host.field, value))

    def test_the_health_check_asks_the_port_of_the_proxy(self) -> None:
        script = json.loads(STEP["HEALTHCHECK"].partition("CMD ")[2])[2]
        self.assertIn(f", {STEP['EXPOSE']}, ", script)
        with running_proxy("http://127.0.0.1:9/v1") as url:
            probe = script.replace(STEP["EXPOSE"], url.rpartition(":")[2])
            self.assertEqual(0, subprocess.run([sys.executable, "-c", probe], timeout=30).returncode)
        gone = subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL, timeout=30)
        self.assertNotEqual(0, gone.returncode)


class ComposeTest(unittest.TestCase):
    def test_it_builds_from_the_checkout(self) -> None:
        [context], [dockerfile] = compose("services/proxy/build/context"), compose("services/proxy/build/dockerfile")
        self.assertEqual(ROOT.resolve(), (FOLDER / context).resolve())
        self.assertTrue((FOLDER / context / dockerfile).is_file())

    def test_only_the_volume_can_be_written(self) -> None:
        self.assertEqual(["true"], compose("services/proxy/read_only"))
        self.assertEqual([f"data:{DATA}"], compose("services/proxy/volumes"))
        self.assertEqual(DATA, STEP["VOLUME"])
        self.assertIn("  data:\n", COMPOSE.partition("\nvolumes:\n")[2])
        self.assertEqual(["ALL"], compose("services/proxy/cap_drop"))
        self.assertEqual(["no-new-privileges:true"], compose("services/proxy/security_opt"))

    def test_only_this_machine_reaches_it_and_nothing_reaches_the_dashboard(self) -> None:
        port = STEP["EXPOSE"]
        self.assertEqual([f"127.0.0.1:{port}:{port}"], compose("services/proxy/ports"))
        [admin] = (str(each.default) for each in SETTINGS if each.field == "admin_port")
        self.assertNotEqual(admin, port)
        self.assertNotIn(admin, DOCKERFILE + COMPOSE)
        self.assertNotIn("ADMIN_HOST", DOCKERFILE + COMPOSE)

    def test_keys_are_handed_on_and_in_no_file(self) -> None:
        self.assertIn("\n      DEEPSEEK_CURSOR_PROXY_ACCESS_KEYS:\n      DEEPSEEK_API_KEY:\n", COMPOSE)
        for text in (DOCKERFILE, COMPOSE):
            self.assertNotRegex(text, r"sk-|sha256:|(?i:key|token|password)\w*\s*[=:] *[^\s.]")
            self.assertNotIn("PIN_KEY", text)

    def test_the_page_names_these_files(self) -> None:
        for name in ("Dockerfile", "compose.yaml"):
            self.assertIn(f"(../docker/{name})", OPERATIONS)
        self.assertIn(f"-v deepseek-cursor-proxy:{DATA} ", OPERATIONS)
