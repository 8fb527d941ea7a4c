"""Requests to a service: tried again until a deadline, and fewer at once when it refuses some."""
