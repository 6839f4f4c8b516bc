"""Needs-gated dispatch: the gate of a job graph. It says when a job may go; who executes it is not its business."""
