"""What is in a corpus: mergeable sketches of its columns, made shard by shard as a job, and the report from them."""
