"""How fast training and prediction are on this machine, and what they cost."""
