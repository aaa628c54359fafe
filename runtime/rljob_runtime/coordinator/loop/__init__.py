"""Loop: what the training loops of both modes have in common."""
