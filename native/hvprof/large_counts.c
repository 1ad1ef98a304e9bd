#include "large_counts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "communicators.h"

enum { MOST_ARGUMENTS = 12, ERROR_COUNT = 2 /* MPI_ERR_COUNT in every ABI */ };

function large_find(struct large_function *known, const char *name, const void *caller)
{
    _Atomic(function) small = NULL;
    profiler_find(&small, name, caller);
    char large_name[64];
    snprintf(large_name, sizeof large_name, "%s_c", name);
    function found = library_replacement(large_name);
    if (found == NULL)
        found = library_find_beside(large_name, small); /* in no other library: a process may hold several */
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

/* Elsewhere than at the root MPI does not look at arrays, and they may be anything. */
static bool is_root(word communicator, int32_t root)
{
    int rank = 0;
    mpi.comm_rank(communicator, &rank);
    return root == (is_inter(communicator) ? mpi.root : rank);
}

static int elements(char letter, word communicator)
{
    int count = 0, sources = 0, destinations = 0;
    switch (letter) {
    case 'p':
        (is_inter(communicator) ? mpi.comm_remote_size : mpi.comm_size)(communicator, &count);
        return count;
    case 'l':
        mpi.comm_size(communicator, &count);
        return count;
    default:
        neighbours_of(communicator, &sources, &destinations);
        return letter == 'i' ? sources : destinations;
    }
}

static bool fits(int64_t value)
{
    return value == (int32_t)value;
}

/* Copies an array into `copy`. False when an element does not fit. */
static bool narrow(const int64_t *array, int count, int32_t *copy)
{
    for (int i = 0; i < count; i++) {
        if (!fits(array[i]))
            return false;
        copy[i] = (int32_t)array[i];
    }
    return true;
}

int large_call_small(function small, const char *letters, const word *arguments, int communicator, int root, void **needed)
{
    profiler_ready(); /* fills in `mpi` */
    int number = (int)strlen(letters), lengths[MOST_ARGUMENTS] = {0}, total = 0;
    bool has_root = root >= 0, looks = !has_root || is_root(as_handle(arguments[communicator]), (int32_t)arguments[root]);
    for (int i = 0; i < number; i++) {
        if (letters[i] == '#' && !fits((int64_t)arguments[i]))
            return ERROR_COUNT;
        if (letters[i] == '-' || letters[i] == '#' || !looks)
            continue;
        /* An all-to-all in place ignores what is said of the buffer that it sends from. */
        bool ignored = arguments[i] == 0 || (letters[i] == 'p' && i < 3 && arguments[0] == mpi.in_place);
        lengths[i] = ignored ? 0 : elements(letters[i], as_handle(arguments[communicator]));
        total += lengths[i];
    }
    word a[MOST_ARGUMENTS] = {0};
    memcpy(a, arguments, (size_t)number * sizeof *a);
    int32_t *copies = total > 0 ? malloc((size_t)total * sizeof *copies) : NULL, *next = copies;
    bool good = total == 0 || copies != NULL;
    for (int i = 0; good && i < number; i++) {
        if (lengths[i] == 0)
            continue;
        good = narrow((const int64_t *)arguments[i], lengths[i], next);
        a[i] = (word)next;
        next += lengths[i];
    }
    /* Arguments beyond those that it has are none of its own. */
    int status = !good ? ERROR_COUNT
                       : ((int (*)(PARAMETERS_12))small)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
    /* Without a profile nobody sees the call complete: what is handed over then stays. */
    if (needed != NULL && status == 0)
        *needed = copies;
    else
        free(copies);
    return status;
}
