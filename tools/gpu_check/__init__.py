"""Modules of tools/gpu-check."""
