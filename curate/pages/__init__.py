"""A page of a job for people: a model of what its ledger says, and the model as one HTML file."""
