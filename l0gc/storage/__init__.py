"""The object store, the only package that talks S3, and the shared log that is built on it."""
