"""Remembering, finding and putting back what the model thought."""
