"""What the sweeps are measured on: filled buckets, a proxy that counts, and a bucket that is made up as it is listed."""
