"""The modules of tools/gpu-check."""
