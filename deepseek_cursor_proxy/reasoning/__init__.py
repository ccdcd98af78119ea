"""Remember, find and restore what the model thought. Pure.

`identity` and `restore` are what an exchange uses, `display` what the chat endpoint shows, `thinking_blocks` how
<details> and <think> are written and stripped, `sealed` what clients store for us, `server_turns` which searches were
in a turn. The rest is private to the folder.
"""
