"""What people look at: it reads what lies below a prefix, and writes nothing."""
