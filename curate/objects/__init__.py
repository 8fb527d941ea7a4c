"""The bytes of stored objects: streams, compression, lines, archives, framed records; the record of an output."""
