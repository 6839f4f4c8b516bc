"""What an instance is made of: slices, retention, clock repair."""
