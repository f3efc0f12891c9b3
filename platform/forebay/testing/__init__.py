"""Datasets for tests, and the laws of drivers as tests."""
