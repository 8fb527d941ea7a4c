"""Arguments and rendering; nothing else."""
