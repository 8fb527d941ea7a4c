"""What happens to a batch: each operator is a frozen value with a schema, an identity and a function of batches."""
