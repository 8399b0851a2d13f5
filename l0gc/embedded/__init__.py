"""A real S3 server and sample data on one machine. Both wrap packages of the extra `l0gc[server]`."""
