"""What is watched and never steers: the events of an exchange (`events`), the console, traces, the log's lines."""
