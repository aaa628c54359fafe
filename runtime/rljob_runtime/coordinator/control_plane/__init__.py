"""Control plane: how the coordinator follows the operator's target and reads its commands."""
