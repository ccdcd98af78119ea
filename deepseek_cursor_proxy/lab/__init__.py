"""A fake DeepSeek, a scripted Cursor, the demo, the benchmark and the soak; the running proxy needs none of it."""
