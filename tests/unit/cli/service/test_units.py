"""The texts of the service: well formed for each system, with every word as it was given."""

import configparser
import plistlib
import re
import unittest
from xml.etree import ElementTree

from deepseek_cursor_proxy.cli.service import managers
from deepseek_cursor_proxy.cli.service.managers import Launch

ODD = ("--model=a b", "--config=C:\\x y\\", '--x="quoted"', "--y=50%", "--z=$HOME", "--w=<&>'", "--v=ü")
LAUNCH = Launch("/opt/my python/bin/python3", ("-m", "deepseek_cursor_proxy", "serve", *ODD), "/home/me & you/100%")
BARE = Launch("/usr/bin/python3", ("-m", "deepseek_cursor_proxy", "serve"))
ARCHIVE = Launch("C:\\Python\\python.exe", ("C:\\tools\\proxy.pyz", "serve", "--port=1"))

# The elements that a task may have, by MS-TSCH 2.5, and the form of those with text.
BOOLEAN, DURATION, TEXT = "true|false", r"P(?:\d+D)?(?:T(?:\d+H)?(?:\d+M)?(?:\d+S)?)?", ".+"
SCHEMA = {
    "Task": {"RegistrationInfo", "Triggers", "Principals", "Settings", "Actions"},
    "RegistrationInfo": {"Description"},
    "Triggers": {"LogonTrigger"},
    "LogonTrigger": {"UserId"},
    "Principals": {"Principal"},
    "Principal": {"UserId", "LogonType", "RunLevel"},
    "Settings": {
        *("MultipleInstancesPolicy", "DisallowStartIfOnBatteries", "StopIfGoingOnBatteries"),
        *("ExecutionTimeLimit", "RestartOnFailure"),
    },
    "RestartOnFailure": {"Interval", "Count"},
    "Actions": {"Exec"},
    "Exec": {"Command", "Arguments", "WorkingDirectory"},
}
FORMS = {
    **dict.fromkeys(("Description", "UserId", "Command", "Arguments", "WorkingDirectory"), TEXT),
    **dict.fromkeys(("DisallowStartIfOnBatteries", "StopIfGoingOnBatteries"), BOOLEAN),
    **dict.fromkeys(("ExecutionTimeLimit", "Interval"), DURATION),
    "LogonType": "InteractiveToken|Password|S4U",
    "RunLevel": "LeastPrivilege|HighestAvailable",
    "MultipleInstancesPolicy": "Parallel|Queue|IgnoreNew|StopExisting",
    "Count": r"[1-9]\d{0,2}",
}
NAMESPACE = "{http://schemas.microsoft.com/windows/2004/02/mit/task}"


class SystemdTest(unittest.TestCase):
    def unit(self, launch: Launch) -> configparser.ConfigParser:
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(managers.systemd_unit(launch))
        return unit

    def test_the_unit_restarts_the_proxy_unless_that_cannot_help(self) -> None:
        service = self.unit(BARE)["Service"]
        self.assertEqual("/usr/bin/python3 -m deepseek_cursor_proxy serve", service["ExecStart"])
        self.assertEqual(("always", "2"), (service["Restart"], service["RestartPreventExitStatus"]))
        self.assertNotIn("WorkingDirectory", service)

    def test_every_word_is_quoted_as_systemd_reads_it(self) -> None:
        service = self.unit(LAUNCH)["Service"]
        self.assertEqual("/home/me & you/100%%", service["WorkingDirectory"])
        self.assertNotRegex(re.sub(r"%%|\$\$", "", service["ExecStart"]), r"[%$]")
        words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', service["ExecStart"])
        read = [re.sub(r"\\(.)", r"\1", quoted) or bare for quoted, bare in words]
        read = [word.replace("%%", "%").replace("$$", "$") for word in read]
        self.assertEqual([LAUNCH.python, *LAUNCH.arguments], read)


class LaunchdTest(unittest.TestCase):
    def test_the_agent_has_every_word_and_restarts_the_proxy(self) -> None:
        for launch in (LAUNCH, BARE):
            agent = plistlib.loads(managers.launchd_agent(launch, "/Users/me & you/x.log").encode())
            self.assertEqual([launch.python, *launch.arguments], agent["ProgramArguments"])
            self.assertEqual(launch.folder, agent.get("WorkingDirectory", ""))
            self.assertEqual("/Users/me & you/x.log", agent["StandardOutPath"])
            self.assertTrue(agent["KeepAlive"] and agent["RunAtLoad"])
            self.assertEqual(0o077, agent["Umask"])


class TaskTest(unittest.TestCase):
    def task(self, launch: Launch) -> ElementTree.Element:
        text = managers.windows_task(launch, "PC\\me & you", "C:\\me\\service.log")
        return ElementTree.fromstring(text.encode("utf-16"))

    def test_the_task_is_one_by_its_schema(self) -> None:
        for launch in (LAUNCH, BARE, ARCHIVE):
            task = self.task(launch)
            self.assertEqual((f"{NAMESPACE}Task", "1.2"), (task.tag, task.get("version")))
            for element in task.iter():
                name = element.tag.removeprefix(NAMESPACE)
                names = [child.tag.removeprefix(NAMESPACE) for child in element]
                with self.subTest(name):
                    self.assertLessEqual(set(names), SCHEMA.get(name, set()))
                    self.assertEqual(len(set(names)), len(names))
                    if name in FORMS:
                        self.assertRegex(element.text or "", rf"\A(?:{FORMS[name]})\Z")
            actions, principal = task.find(f"{NAMESPACE}Actions"), task.find(f".//{NAMESPACE}Principal")
            assert actions is not None
            assert principal is not None
            self.assertEqual(actions.get("Context"), principal.get("id"))

    def test_the_task_runs_without_a_window_and_with_a_log(self) -> None:
        task = self.task(ARCHIVE)
        self.assertEqual("C:\\Python\\pythonw.exe", task.findtext(f".//{NAMESPACE}Command"))
        arguments = task.findtext(f".//{NAMESPACE}Arguments") or ""
        self.assertTrue(arguments.endswith(r"C:\tools\proxy.pyz C:\me\service.log serve --port=1"), arguments)
        installed = self.task(Launch("C:\\Python\\python.exe", BARE.arguments)).findtext(f".//{NAMESPACE}Arguments")
        self.assertEqual(r"-m deepseek_cursor_proxy.cli.service.log_file C:\me\service.log serve", installed)
