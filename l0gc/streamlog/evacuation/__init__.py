"""Moving what lagging partitions still need out of old L0 objects, so that M can pass these."""
