"""A public https address for the proxy, by ngrok, which runs as a child process. Others import `supervisor.Tunnel`."""
