"""What doctor makes of what it has seen. Pure."""
