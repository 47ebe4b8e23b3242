"""Where calls act: simulations, the paced environment around them, scripted experts, rollouts and evaluation."""
