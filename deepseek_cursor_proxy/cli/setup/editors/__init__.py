"""Editors of configuration files: text in, text out, and the way back. They do no I/O and know no client.

    documents                a file as text and back to the same bytes; what an editor is
    toml_text, yaml_text     formats with comments: the lines that are written are marked (marked_lines)
    json_text, json_tree     JSON, with or without comments
    whole_file               a file that is setup's alone

Other folders import all but json_tree and marked_lines.
"""
