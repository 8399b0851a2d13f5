"""A real S3 server and real sample data on one machine, for the demo, the tests and the benchmarks.

Nothing here is needed to collect garbage in somebody's bucket, so what it wraps is not among l0gc's own
dependencies: SeaweedFS and the flights come with the extra `l0gc[server]`.
"""
