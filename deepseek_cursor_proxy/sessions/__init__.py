"""Sessions: what passed through the proxy as trajectories, with the true reasoning of every turn.

    service          the observer, and the way to the others, which it imports when they are needed
    trajectory       the values: Session, Node, RecordedTurn
    session_store    sessions, their nodes and messages in a file of their own; session_writer: how turns get there
    recorder         writes turns, on a thread of its own; journal: turns not yet written, so that a kill loses none
    rendering        a trajectory as one text, with its tokens, masks and log probabilities
    export           sessions and nodes as the API has them, and as lines of a file for training

Other folders import all but session_writer, journal and recorder.
"""
