"""The bytes of stored objects, whatever their format: streams, compression, lines, the record of an output."""
