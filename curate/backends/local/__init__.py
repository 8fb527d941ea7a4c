"""Tasks in worker processes of this machine, without Ray: forked by a server, killed with it."""
