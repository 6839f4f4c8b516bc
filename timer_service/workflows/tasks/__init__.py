"""The tasks of workers: held polls, claims, reports and renewals."""
