"""What each tenant may have: quotas, event allowances, and the log of what was refused."""
