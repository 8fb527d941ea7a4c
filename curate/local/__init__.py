"""Runs tasks in worker processes of this machine, without Ray: forked by a server, and killed with it."""
