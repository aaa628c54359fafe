"""OpenEnv: environments behind servers of the OpenEnv project."""
