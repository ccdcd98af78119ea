"""The flags of commands, and the parser of the command line.

parser          a table of Commands, parsed: options out, or one line that says what is wrong
settings_flags  the settings as flags, and the configuration that follows
flag_types      the values of flags that are no settings
"""
