"""Triton kernels that are tied to no vendor. Importing the room loads neither Triton nor torch's device parts."""
