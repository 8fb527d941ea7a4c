"""The rows of a job on its page: where they went, with some of those that did not come out."""
