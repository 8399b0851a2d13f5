"""A real S3 server and sample data on one machine; what both wrap comes with the extra `l0gc[server]`."""
