"""Divide and conquer: a merge sort over a balanced binary tree of ranks."""

from typing import ClassVar

from hvscale.bench.applications import Application, ApplicationParameter, ProgramResult, Sizes, register

BYTES_A_SAMPLE = 8


class MergeSortResult(ProgramResult):
    sorted: bool
    checksum_before: str
    checksum_after: str


class MergeSort(Application):
    name = "merge_sort"
    summary = (
        "divide and conquer: sorts samples of 1/(1+x) over [100, 200] over a balanced binary tree; np a power of two"
    )
    sources = ("merge_sort.c",)
    # The study gives none. 10^9 samples need 12 GB on rank 0, which its PCs had.
    parameters: ClassVar = {"samples": ApplicationParameter("to sort", 10**7, 10**9)}
    result = MergeSortResult

    def unsupported_reason(self, np: int, sizes: Sizes) -> str | None:
        if np & (np - 1):
            below = 1 << (np.bit_length() - 1)
            return f"each rank halves its samples: np must be a power of two, such as {below} or {2 * below}"
        return None

    def memory(self, np: int, sizes: Sizes) -> tuple[int, str]:
        """Rank 0 has all samples and scratch space for half of them, the other ranks the same for
        their shares. Each level of the tree has half of all samples.
        """
        levels = np.bit_length() - 1
        each = BYTES_A_SAMPLE * 3 * (2 + levels) // 4
        return each * sizes[
            "samples"
        ], f"{each} bytes for each of {sizes['samples']} samples on {levels} levels below rank 0"

    def check_result(self, result: MergeSortResult, sizes: Sizes, serial: None) -> str | None:
        if not result.sorted:
            return "the samples are not sorted"
        if result.checksum_before != result.checksum_after:
            return "the sorted samples are not a permutation of the input"
        return None


register(MergeSort())
