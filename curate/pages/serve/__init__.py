"""What serving pages takes beside making them: what was read before, and jobs as metrics."""
