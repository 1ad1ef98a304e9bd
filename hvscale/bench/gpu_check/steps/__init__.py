"""The steps of `hvscale check-gpu`. Each file registers one."""
