"""The container, by its files, because tests run without Docker: no root, no secret, one place to write, one port."""

import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

from deepseek_cursor_proxy.config import ProxyConfig
from deepseek_cursor_proxy.config.declaration import ENVIRONMENT_PREFIX
from deepseek_cursor_proxy.config.loaded_config import SETTINGS
from tests.support.harness import running_proxy

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".github" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
TEAM = (FOLDER / "compose.team.yaml").read_text(encoding="utf-8")
NGINX = (FOLDER / "nginx.team.conf").read_text(encoding="utf-8")
OPERATIONS = (ROOT / ".github/docs/operations.md").read_text(encoding="utf-8")

STEPS = re.findall(r"^([A-Z]+) (.+)$", DOCKERFILE, re.MULTILINE)
STEP = dict(STEPS)
DATA = "/home/app/.deepseek-cursor-proxy"

# The system users of a Debian image, from base-passwd.
DEBIAN_USERS = {"root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy"}
DEBIAN_USERS |= {"www-data", "backup", "list", "irc", "_apt", "nobody"}


def compose(path: str, file: str = COMPOSE) -> list[str]:
    """The value of a key of a compose file, or the items of its list; `path` are the keys that lead to it."""
    found: list[str] = []
    keys: list[tuple[int, str]] = []
    for line in file.splitlines():
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
        [host] = (each for each in SETTINGS if ENVIRONMENT_PREFIX + each.key.upper() == name)
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


class TeamComposeTest(unittest.TestCase):
    def test_only_the_balancer_can_be_reached_and_it_knows_both_proxies(self) -> None:
        port = re.findall(r"listen (\d+);", NGINX)[0]
        self.assertEqual([f"127.0.0.1:{port}:{port}"], compose("services/balancer/ports", TEAM))
        self.assertEqual(1, TEAM.count("ports:"))
        names = re.findall(r"server (\w+):(\d+) ", NGINX)
        self.assertEqual([("proxy1", STEP["EXPOSE"]), ("proxy2", STEP["EXPOSE"])], names)
        self.assertEqual(["proxy1", "proxy2"], compose("services/balancer/depends_on", TEAM))
        [mounted] = compose("services/balancer/volumes", TEAM)
        self.assertTrue((FOLDER / mounted.partition(":")[0]).is_file())

    def test_the_proxies_share_the_settings_and_the_engine_but_not_the_file(self) -> None:
        variable = {each.field: ENVIRONMENT_PREFIX + each.key.upper() for each in SETTINGS}
        path = variable["reasoning_content_path"]
        files = [compose(f"services/{name}/environment/{path}", TEAM) for name in ("proxy1", "proxy2")]
        self.assertEqual([[f"{DATA}/proxy1.sqlite3"], [f"{DATA}/proxy2.sqlite3"]], files)
        self.assertEqual([f"data:{DATA}"], compose("services/proxy1/volumes", TEAM))
        self.assertIn(compose("services/proxy2/<<", TEAM)[0].replace("*", "&"), compose("services/proxy1", TEAM))
        engine = compose(f"services/proxy1/environment/{variable['store']}", TEAM)
        self.assertEqual(["valkey://engine:6379/0"], engine)
        self.assertIn("--maxmemory-policy noeviction", compose("services/engine/command", TEAM)[0])
        # Answers get less time to finish than the container has to stop.
        [grace] = compose(f"services/proxy1/environment/{variable['shutdown_grace']}", TEAM)
        self.assertLess(int(grace.strip('"')), int(compose("services/proxy1/stop_grace_period", TEAM)[0].rstrip("s")))

    def test_nothing_but_the_volume_can_be_written_and_no_file_has_a_secret(self) -> None:
        self.assertEqual(["true"], compose("services/proxy1/read_only", TEAM))
        self.assertEqual(["ALL"], compose("services/proxy1/cap_drop", TEAM))
        self.assertIn("\n      DEEPSEEK_API_KEY:\n      DEEPSEEK_CURSOR_PROXY_SECRET:\n", TEAM)
        self.assertNotRegex(TEAM, r"sk-|sha256:|(?i:key|token|password|secret): +[^\s.]")

    def test_nginx_sends_streams_on_and_closes_its_connections_first(self) -> None:
        self.assertIn("proxy_buffering off;", NGINX)
        [kept] = re.findall(r"keepalive_timeout (\d+)s;", NGINX)
        self.assertLess(int(kept), ProxyConfig().idle_timeout)
        [largest] = re.findall(r"client_max_body_size (\d+)m;", NGINX)
        self.assertGreaterEqual(int(largest) * 1024**2, ProxyConfig().max_request_body_bytes)
        [patience] = re.findall(r"proxy_read_timeout (\d+)s;", NGINX)
        self.assertGreater(int(patience), ProxyConfig().max_queue_seconds)

    def test_the_page_names_these_files(self) -> None:
        page = (ROOT / ".github/docs/team.md").read_text(encoding="utf-8")
        for name in ("compose.team.yaml", "nginx.team.conf"):
            self.assertIn(f"(../docker/{name})", page)
