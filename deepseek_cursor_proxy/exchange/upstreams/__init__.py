"""The upstreams of a configuration: the servers that generations are asked for.

    upstreams    each of them, and the order in which those that serve a model are asked
    host_choice  the API to call one with, as its host has it

Other folders import upstreams.
"""
