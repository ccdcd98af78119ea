"""Things to try the proxy with and to measure it by; nothing the running proxy needs."""
