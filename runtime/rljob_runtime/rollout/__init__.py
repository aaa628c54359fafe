"""A rollout replica and the engines it can drive: vLLM, and a small one in plain torch with the same contract."""
