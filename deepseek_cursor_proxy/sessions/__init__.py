"""Sessions: what passed through the proxy as trajectories, with the true reasoning of every turn.

    store            sessions, their nodes and messages in a file of their own; schema: its tables
    recorder         the observer that records, on its own thread
    rendering        a trajectory as one text; token_masks: its tokens, masks and log probabilities
    export           nodes as JSON lines, for training

Other folders import store, recorder, export and rendering.
"""
