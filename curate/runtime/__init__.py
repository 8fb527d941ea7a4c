"""What backends have in common, and what is asked of them."""
