"""Checks what an output holds, piece by piece."""
