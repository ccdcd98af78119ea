"""The proxy as a service of the user: a unit of systemd, an agent of launchd, a task of Windows.

    managers    the command that starts this installation, the texts that the three systems want (the documentation has
                the same), where they go, and the commands that install, remove and show the service
    log_file    the proxy with its output in a file, for Windows, where a task has no console

Others import `managers`.
"""
