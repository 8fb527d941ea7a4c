"""What a user writes: Job, TextJob, FileJob; parameters, identity, options."""
