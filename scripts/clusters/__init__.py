"""The parts of scripts/cluster: parameters, the files made from them, their checks, and Ray's own commands."""
