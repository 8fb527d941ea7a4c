"""Texts as tokens of a vocabulary, and documents of tokens as sequences of one length."""
