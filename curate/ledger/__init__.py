"""The durable record beside an output."""
