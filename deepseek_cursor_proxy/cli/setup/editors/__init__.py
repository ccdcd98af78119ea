"""Editors of configuration files: text in, text out, and the way back. They do no I/O and know no client.

    documents                a file as text and back to the same bytes; what an editor is; a file that is setup's alone
    toml_text, yaml_text     formats with comments: the lines that are written are marked (marked_lines)
    json_text                JSON, with or without comments

Other folders import all but marked_lines.
"""
