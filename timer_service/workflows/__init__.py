"""Workflows: functions of the users that continue after any crash. Workers execute them and store each result."""
