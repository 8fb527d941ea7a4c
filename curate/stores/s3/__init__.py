"""S3 and what speaks its language: MinIO, R2, Ceph. Credentials and signatures are botocore's, requests are ours.

Three clients were tried. s3fs 2026.9 has `mode='create'` for both kinds of upload, but retries by itself, which hides
throttling from whoever should slow down, and its import takes 1.2 s. obstore 0.12 imports in 0.03 s, but its
`put(mode='create')` is one request that is held in memory, its upload in parts has no condition at its completion, and
it retries below the calls that are counted. botocore beneath both has the usual chain of credentials and the signature;
without its clients, whose model of the service is most of their weight, it is imported in 0.3 s. The requests that
curate makes are nine, and a condition is a header of one of them.
"""
