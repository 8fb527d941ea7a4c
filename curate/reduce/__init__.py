"""What becomes of run files: the plan of an exchange, which says what every output reads of them, and reading that.

Cuts between outputs are made from the indexes of all run files, which are the sample of the keys; a task finds in the
run files that it reads where exactly its own rows begin and end.
"""
