"""The durable record beside an output, `<output>/_curate/`: its names, its documents, and the checks that they pass."""
