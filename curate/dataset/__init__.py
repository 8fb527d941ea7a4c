"""`Dataset`: a lazy API over rows, with names known from `ray.data`."""
