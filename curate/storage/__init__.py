"""Objects: list, read ranges, publish create-only. Local disk, memory and GCS behind one protocol."""
