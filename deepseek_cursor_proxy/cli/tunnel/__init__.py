"""A public https address for the proxy, because Cursor's servers need one to call us; by a program that the user has.

    supervisor    choose the program, start, check, watch and restart it, say when the URL changed, stop
    program       what all programs have in common; ngrok, cloudflared, tailscale and ssh have a module each
    child         the running program and what it prints; it ends with this process (windows_job: also on Windows)

The tunnel leads to the port of the proxy, never to that of the dashboard. Others import `supervisor`.
"""
