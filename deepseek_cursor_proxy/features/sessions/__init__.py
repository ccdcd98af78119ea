"""Sessions: what passed through the proxy as trajectories, with the true reasoning of every turn.

service       records turns, and the way to the others, which it imports when they are needed
trajectory    the values: Session, Node, RecordedTurn; the turns of a request
store         sessions, their nodes and messages in a file of their own
rendering     a trajectory as one text, with its tokens, masks and log probabilities
export        sessions and nodes as the API has them, and as lines of a file for training
"""
