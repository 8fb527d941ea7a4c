"""Attributes beside the data: columns that a job has written for rows, joined to these by their places."""
