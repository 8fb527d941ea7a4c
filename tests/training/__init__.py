"""Tests of curate.training."""
