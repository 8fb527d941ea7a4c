"""What a store does: list, read ranges, publish create-only; the URIs of objects, and their listings."""
