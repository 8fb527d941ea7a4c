"""What is asked for, and what will run: pure values and functions."""
