"""Triton kernels for GPUs. Importing them needs Triton, which CUDA builds of torch include."""
