"""A public https address for the proxy, because Cursor's servers need one to call us; by a program that the user has.

    supervisor    start, check, watch and restart the program, say when the URL changed, stop
    choice        which program to run: the one that was chosen, or the first that is installed
    program       what all programs have in common; ngrok, cloudflared, tailscale and ssh have a module each
    local_api     calls to the API that some of them have on this machine
    reachability  whether a public URL leads to this proxy
    child         the running program and what it prints; child_process, windows_job: it ends with this process

The tunnel leads to the port of the proxy, never to that of the dashboard. Others import `supervisor.Tunnel`,
`choice.choose` and `reachability.ask`.
"""
