"""The proxy as a service of the user: a unit of systemd, an agent of launchd, a task of Windows.

    launch      the command that starts this installation, whichever way it was installed
    units       the texts that the three systems want; the documentation has the same
    managers    where the text goes, and the commands of the system that install, remove and show the service
    log_file    the proxy with its output in a file, for Windows, where a task has no console

Others import `launch.find_launch` and `managers.manager`.
"""
