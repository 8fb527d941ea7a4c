"""Steps that feed each other: jobs in the order of one file, each reading files or the outputs of earlier steps."""
