"""Foreign code: functions and programs of others, run in processes that can be ended."""
