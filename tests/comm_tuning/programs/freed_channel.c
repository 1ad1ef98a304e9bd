/*
 * A thread looks up a channel while another thread frees the communicator that it used before, at
 * the worst moment: after the look at `generation`. Compiled with the address sanitizer.
 */
#include <stdatomic.h>
#include <stdint.h>

static uint64_t load_and_free(const _Atomic uint64_t *generation);

#undef atomic_load_explicit
#define atomic_load_explicit(object, order) load_and_free(object)
#include "broadcast/channel.c"

enum { FREED = 1, OTHER = 2 };

static struct channel *attributes[3];
static bool other_thread_frees;

static uint64_t load_and_free(const _Atomic uint64_t *value)
{
    uint64_t before = *value;
    if (other_thread_frees)
        delete_channel(FREED, key, attributes[FREED], NULL);
    other_thread_frees = false;
    return before;
}

static int get_attribute(word communicator, int this_key, void *value, int *found)
{
    (void)this_key;
    *(struct channel **)value = attributes[communicator];
    *found = attributes[communicator] != NULL;
    return 0;
}

static int set_attribute(word communicator, int this_key, void *value)
{
    (void)this_key;
    attributes[communicator] = value;
    return 0;
}

static int is_no_inter_communicator(word communicator, int *inter)
{
    (void)communicator;
    *inter = 0;
    return 0;
}

static int one(word communicator, int *number)
{
    (void)communicator;
    *number = 1;
    return 0;
}

int main(void)
{
    int status;
    mpi.comm_get_attr = get_attribute;
    mpi.comm_set_attr = set_attribute;
    mpi.comm_test_inter = is_no_inter_communicator;
    mpi.comm_rank = mpi.comm_size = one;
    channel_of(FREED, &status);
    other_thread_frees = true;
    struct channel *found = channel_of(OTHER, &status);
    bool correct = found == attributes[OTHER];
    free(found);
    return correct ? 0 : 1;
}
