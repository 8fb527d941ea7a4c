"""What a user writes: Job, TextJob, RowsJob, FileJob: classes with parameters, an identity and a command line."""

from curate.imports import uncollected

with uncollected():
    from curate.job.asset import Asset
    from curate.job.job import Job
    from curate.job.params import param
    from curate.job.shapes import FileJob, RowsJob, TextJob

__all__ = ["Asset", "FileJob", "Job", "RowsJob", "TextJob", "param"]
