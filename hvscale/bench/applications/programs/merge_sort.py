"""Divide and conquer: a merge sort over a balanced binary tree of ranks."""

from typing import ClassVar

from hvscale.bench.applications import Application, ApplicationParameter, Result, Sizes, register

BYTES_A_SAMPLE = 8


class MergeSortResult(Result):
    sorted: bool
    checksum_before: str
    checksum_after: str


class MergeSort(Application):
    name = "merge_sort"
    summary = (
        "divide and conquer: samples of 1/(1+x) over [100, 200], sorted over a balanced binary tree; np a power of two"
    )
    sources = ("merge_sort.c",)
    # The study names none: 10^9 fill 12 GB of rank 0's memory, which a PC of its kind has.
    parameters: ClassVar = {"samples": ApplicationParameter("to be sorted", 10**7, 10**9)}
    result = MergeSortResult

    def why_not(self, np: int, sizes: Sizes) -> str | None:
        if np & (np - 1):
            below = 1 << (np.bit_length() - 1)
            return f"every rank halves what it has, so np is a power of two: {below} or {2 * below}"
        return None

    def memory(self, np: int, sizes: Sizes) -> tuple[int, str]:
        """Rank 0 holds all samples and room for half of them, the other ranks the same of their
        shares: each level of the tree has half of all.
        """
        levels = np.bit_length() - 1
        each = BYTES_A_SAMPLE * 3 * (2 + levels) // 4
        return each * sizes[
            "samples"
        ], f"{each} bytes for each of {sizes['samples']} samples on {levels} levels below rank 0"

    def problem(self, result: MergeSortResult, sizes: Sizes, serial: None) -> str | None:
        if not result.sorted:
            return "the samples are not sorted"
        if result.checksum_before != result.checksum_after:
            return "the sorted samples are not the ones that were given"
        return None


register(MergeSort())
