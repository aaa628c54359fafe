"""Round planner: predicts each plan of the next rounds and selects one."""
