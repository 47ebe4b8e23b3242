"""`rtcontrol drill --policy`: what a policy server may do wrong, and that nothing of it acts. docs/policies.md."""
