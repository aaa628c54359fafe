"""Timeline: what ran where and when, for Perfetto (ui.perfetto.dev) and chrome://tracing."""
