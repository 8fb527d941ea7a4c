"""What one task does."""
