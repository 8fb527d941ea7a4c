"""Folders of this machine: those that are one user's alone, and paths that no link leads away from."""
