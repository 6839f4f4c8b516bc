"""What a message is: addresses, positions, instants, durations, stored JSON, errors and the codec."""
