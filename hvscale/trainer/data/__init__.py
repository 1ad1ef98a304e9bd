"""Where training images come from, and how they reach the ranks. Nothing here needs torch but what
makes tensors of them.
"""
