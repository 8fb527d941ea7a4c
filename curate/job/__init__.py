"""What a user writes: Job, TextJob, FileJob; parameters, identity, options."""

from curate.job.asset import Asset
from curate.job.base import Job
from curate.job.file import FileJob
from curate.job.params import param
from curate.job.text import TextJob

__all__ = ["Asset", "FileJob", "Job", "TextJob", "param"]
