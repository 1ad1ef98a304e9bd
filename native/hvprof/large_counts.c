/* Makes a call with large counts through the function with int counts. */
#include "large_counts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "communicators.h"
#include "recorder.h"

enum {
    MAX_ARGUMENTS = 12,
    ON_STACK = 2048, /* elements */
    ERROR_COUNT = 2, /* MPI_ERR_COUNT in every ABI */
};

fn_ptr large_find(struct large_function *known, const char *name, const void *caller)
{
    _Atomic(fn_ptr) small = NULL;
    profiler_find(&small, name, caller);
    char large_name[64];
    snprintf(large_name, sizeof large_name, "%s_c", name);
    fn_ptr found = mpi_find_replacement(large_name);
    if (found == NULL)
        found = mpi_find_in_library_of(large_name, small); /* a process may hold several MPI libraries */
    atomic_store(&known->is_small, found == NULL);
    found = found != NULL ? found : small;
    atomic_store_explicit(&known->real, found, memory_order_release);
    return found;
}

static bool is_inter(word communicator)
{
    int inter = 0;
    mpi.comm_test_inter(communicator, &inter);
    return inter != 0;
}

/* Whether this rank is the root, which alone must pass valid arrays. */
static bool is_root(word communicator, int32_t root)
{
    int rank = 0;
    mpi.comm_rank(communicator, &rank);
    return root == (is_inter(communicator) ? mpi.root : rank);
}

/* The length of an array of this kind (large_counts.h). */
static int elements(char kind, word communicator)
{
    int count = 0, sources = 0, destinations = 0;
    switch (kind) {
    case 'p':
        (is_inter(communicator) ? mpi.comm_remote_size : mpi.comm_size)(communicator, &count);
        return count;
    case 'l':
        mpi.comm_size(communicator, &count);
        return count;
    default:
        neighbours_of(communicator, &sources, &destinations);
        return kind == 'i' ? sources : destinations;
    }
}

static bool fits(word argument)
{
    int64_t value = (int64_t)argument;
    return value == (int32_t)value;
}

/* Copies an array into `copy`. Returns false if an element does not fit into an int. */
static bool narrow(const int64_t *array, int count, int32_t *copy)
{
    for (int i = 0; i < count; i++) {
        if (!fits((word)array[i]))
            return false;
        copy[i] = (int32_t)array[i];
    }
    return true;
}

/*
 * Finds the lengths of the arrays to copy, and their sum. Returns false if a count does not fit
 * into an int.
 */
static bool measure(const struct large_call *call, int lengths[MAX_ARGUMENTS], int *total)
{
    word communicator = call->communicator >= 0 ? as_handle(call->arguments[call->communicator]) : 0;
    bool reads_arrays = call->root < 0 || is_root(communicator, (int32_t)call->arguments[call->root]);
    for (int i = 0; call->kinds[i] != '\0'; i++) {
        char kind = call->kinds[i];
        if (kind == '#' && !fits(call->arguments[i]))
            return false;
        if (kind == '-' || kind == '#' || !reads_arrays)
            continue;
        /* An in-place all-to-all ignores the arguments of the send buffer. */
        bool ignored = call->arguments[i] == 0 || (kind == 'p' && i < 3 && call->arguments[0] == mpi.in_place);
        lengths[i] = ignored ? 0 : elements(kind, communicator);
        *total += lengths[i];
    }
    return true;
}

int large_call_small(fn_ptr small, const struct large_call *call, void **until_complete)
{
    profiler_ready(); /* fills in `mpi` */
    int lengths[MAX_ARGUMENTS] = {0}, total = 0;
    if (!measure(call, lengths, &total))
        return ERROR_COUNT;
    /* Allocates only when necessary, so that lack of memory rarely matters. */
    int32_t on_stack[ON_STACK], *copies = on_stack;
    if (total > ON_STACK || (total > 0 && until_complete != NULL))
        copies = malloc((size_t)total * sizeof *copies);
    if (copies == NULL) {
        hvprof_stop_out_of_memory();
        return mpi.err_no_mem;
    }
    word a[MAX_ARGUMENTS] = {0};
    memcpy(a, call->arguments, strlen(call->kinds) * sizeof *a);
    int32_t *next = copies;
    bool good = true;
    for (int i = 0; good && i < MAX_ARGUMENTS; i++) {
        if (lengths[i] == 0)
            continue;
        good = narrow((const int64_t *)call->arguments[i], lengths[i], next);
        a[i] = (word)next;
        next += lengths[i];
    }
    /* A function ignores arguments beyond its own. */
    int status = ERROR_COUNT;
    if (good)
        status = ((int (*)(PARAMETERS_12))small)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10],
                                                 a[11]);
    if (copies == on_stack)
        return status;
    /* Without a profile nothing notices the completion, so the copies are never freed. */
    if (until_complete != NULL && status == 0)
        *until_complete = copies;
    else
        free(copies);
    return status;
}
