"""What `scripts/simulate` simulates: who disturbs, who runs tasks, who watches, and what is told of it."""
