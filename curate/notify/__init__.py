"""Why nothing moves, and who is told: what a run waits for; posts of ends and standstills, each known by an id."""
