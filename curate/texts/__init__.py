"""What is measured of texts, batch by batch: words, lines, repetition; and the published rules about these measures."""
