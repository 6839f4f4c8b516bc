"""The commands of workflows: their rules, the batch of one transaction, and the starts by schedules."""
