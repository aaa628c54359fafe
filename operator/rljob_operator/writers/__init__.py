"""Writers: what the applier writes beside pods and the status."""
