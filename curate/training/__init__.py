"""Batches of tokens for a training loop, in an order that a seed decides, and a state that resumes them.

from curate.training import TokenShards

shards = TokenShards("gs://bucket/tokens", sequence_length=2048, batch_size=256, seed=1, rank=rank, world_size=8)
for batch in shards:  # arrays of 32 sequences
    train(batch)
    save(shards.state_dict())
"""

from curate.training.shards import TokenShards

__all__ = ["TokenShards"]
