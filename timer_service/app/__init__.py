"""COMPOSITION ROOT: builds database, broker, slices and HTTP from Config, runs and stops them."""
