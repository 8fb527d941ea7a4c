"""Functions on Arrow data that know nothing of curate."""

from curate.late_pandas import import_pandas_late

# Before any array is made: in what runs a job, in workers of any backend, and in a program that looks at what there is.
import_pandas_late()
