"""The demo: a scripted Cursor asks a small DeepSeek through the proxy; the doctor plays its chat too."""
