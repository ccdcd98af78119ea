"""Models whose requests go to another host unchanged."""
