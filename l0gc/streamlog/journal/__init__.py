"""A journal: the shared log of many partitions, and the state machine that determines which epochs they may still need."""
