"""The programs in C, and what there is to know about each of them."""
