"""Calls that a model wrote as text: made calls of the answer.

feature      the Feature, and which answers are searched
converter    the deltas of an answer, converted
call_markup  in which forms models write calls
"""
