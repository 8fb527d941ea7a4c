"""The parts of `scripts/simulate`: disturbances, the simulated cluster, the auditor and the report."""
