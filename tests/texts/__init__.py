"""Tests of the room `texts`: measures against plain Python, a text at a time."""
