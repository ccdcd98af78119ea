"""Sessions: what passed through the proxy as trajectories, with the true reasoning of every turn.

    service          the observer, and the way to the others, which it imports when they are needed
    trajectory       the values: Session, Node, RecordedTurn
    store            sessions, their nodes and messages in a file of their own; session_writer, rows, schema: its parts
    recorder         writes turns, on a thread of its own; journal: those that wait, for the case that we are killed
    rendering        a trajectory as one text; token_masks: its tokens, masks and log probabilities
    node_json        sessions and nodes as the API has them; export: nodes as lines of a file, for training

Other folders import all but schema, session_writer, rows, journal, recorder and token_masks.
"""
