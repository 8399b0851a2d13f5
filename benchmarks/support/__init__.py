"""What sweeps are measured on: filled buckets, a proxy that counts, and a bucket that is generated as it is listed."""
