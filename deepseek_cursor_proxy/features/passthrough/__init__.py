"""Models whose requests go to another host unchanged: `endpoint` forwards them."""
