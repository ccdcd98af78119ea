"""A public https address for the proxy, because Cursor's servers need one to call us; by a program that the user has.

    supervisor    start, watch and restart the program, say when the URL changed, stop
    programs      ngrok and cloudflared: what they are started with, print and need; the choice of one
    child         the running program; it ends with this process

The tunnel leads to the port of the proxy, never to that of the dashboard. Others import `supervisor` and `programs`.
"""
