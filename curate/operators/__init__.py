"""What happens to a batch."""
