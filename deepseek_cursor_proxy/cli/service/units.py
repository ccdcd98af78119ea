"""The texts of the service: a unit for systemd, a property list for launchd, a task for Windows. Pure.

Exit code 2 means that no restart will help; systemd has a line for it. A stop gives running answers their time.
"""

import re
from pathlib import PureWindowsPath
from subprocess import list2cmdline
from xml.sax.saxutils import escape

from deepseek_cursor_proxy.cli.service.launch import Launch

NAME = "deepseek-cursor-proxy"
_DESCRIPTION = "DeepSeek's thinking models in Cursor and other agents"
# More than shutdown_grace, then the system kills.
_STOP_SECONDS = 15

_UNIT = """[Unit]
Description={description}

[Service]
{folder}ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
EnvironmentFile=-%h/.deepseek-cursor-proxy/environment
Restart=always
RestartSec=2
RestartPreventExitStatus=2
KillMode=mixed
TimeoutStopSec={seconds}
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""

_AGENT = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key><string>{name}</string>
  <key>ProgramArguments</key>
  <array>
{words}
  </array>{folder}
  <key>EnvironmentVariables</key>
  <dict><key>PATH</key><string>/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin</string></dict>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><true/>
  <key>ExitTimeOut</key><integer>{seconds}</integer>
  <key>Umask</key><integer>63</integer>
  <key>StandardOutPath</key><string>{log}</string>
  <key>StandardErrorPath</key><string>{log}</string>
</dict>
</plist>
"""

# Limits: a task ends after three days, and with the battery, unless it says otherwise.
_TASK = """<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>{description}</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <UserId>{user}</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{user}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>99</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{command}</Command>
      <Arguments>{arguments}</Arguments>{folder}
    </Exec>
  </Actions>
</Task>
"""


def systemd_unit(launch: Launch) -> str:
    folder = f"WorkingDirectory={launch.folder.replace('%', '%%')}\n" if launch.folder else ""
    command = " ".join(map(_systemd_word, (launch.python, *launch.arguments)))
    return _UNIT.format(description=_DESCRIPTION, folder=folder, command=command, seconds=_STOP_SECONDS)


def _systemd_word(word: str) -> str:
    """A word of ExecStart: % and $ have a meaning there, and so have blanks, quotes and backslashes."""
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%$+=:,./-]+", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def launchd_agent(launch: Launch, log: str) -> str:
    words = "\n".join(f"    <string>{escape(word)}</string>" for word in (launch.python, *launch.arguments))
    folder = f"\n  <key>WorkingDirectory</key><string>{escape(launch.folder)}</string>" if launch.folder else ""
    return _AGENT.format(name=NAME, words=words, folder=folder, log=escape(log), seconds=_STOP_SECONDS)


def windows_task(launch: Launch, user: str, log: str) -> str:
    # No window opens with it.
    python = str(PureWindowsPath(launch.python).with_name("pythonw.exe"))
    folder = f"\n      <WorkingDirectory>{escape(launch.folder)}</WorkingDirectory>" if launch.folder else ""
    return _TASK.format(
        description=_DESCRIPTION,
        user=escape(user),
        command=escape(python),
        arguments=escape(list2cmdline(_logged(launch, log))),
        folder=folder,
    )


def _logged(launch: Launch, log: str) -> list[str]:
    """The arguments of a Python without a console, which writes what it prints into a file."""
    module = "deepseek_cursor_proxy.cli.service.log_file"
    if not launch.archive:
        return ["-m", module, log, *launch.arguments[2:]]
    start = f"import sys, runpy; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('{module}', run_name='__main__')"
    return ["-c", start, launch.archive, log, *launch.arguments[1:]]
