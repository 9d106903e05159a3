"""Elastic PyTorch training on stock Slurm."""

__version__ = "0.1.0"
