"""What scripts/cluster is made of: parameters, the files made from them, their checks, and Ray's own commands."""
