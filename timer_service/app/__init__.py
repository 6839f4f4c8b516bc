"""COMPOSITION ROOT: builds the database, the broker, the slices and HTTP from `Config`; starts and stops them."""
