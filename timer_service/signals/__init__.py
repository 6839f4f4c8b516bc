"""Work signals: "when this happens to that work item, remind me, once, for certain"."""
