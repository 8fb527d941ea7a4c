"""Where a Dataset begins: files, or what is in memory."""
