"""The commands of `curate`: arguments in, text out, nothing else."""
