"""Remember, find and restore what the model thought. No I/O; the store is a function passed in.

    identity           the keys of a turn
    echoes, restore    an exchange begins with `echoes.find_turns`; then `restore.prepare` makes the request to send
    chats              a request and the one before it in its chat: finds where they differ; sorts the tools
    thinking_blocks    shows, finds and strips <details> and <think> blocks in a text
    server_turns       the searches that were part of a turn

Private to the folder: `markdown_escape`.
"""
