"""Jobs on real nodes."""
