"""Web archives and the pages in them: records out of WARC files, whatever is broken in these, and text out of pages."""
