"""Stream training: gradients of complete groups during generation, and machines on loan to the trainer."""
