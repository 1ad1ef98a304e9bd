"""The part of autotune that runs inside the ranks. Standard library only, besides Horovod and
PyTorch, because a program's Python may have nothing else.
"""
