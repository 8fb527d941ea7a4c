"""Runs the stages of a plan in order."""
