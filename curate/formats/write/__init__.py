"""One file for each format that is written."""
