/* Times calls of functions that are known only by address. */
#include "time_calls.h"

#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#define AS(...) ((int (*)(__VA_ARGS__))c->fn)

static inline int make(const struct call *c)
{
    const word *a = c->arguments;
    switch (c->arity) {
    case 1:
        return AS(word)(a[0]);
    case 4:
        return AS(word, word, word, word)(a[0], a[1], a[2], a[3]);
    case 5:
        return AS(word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4]);
    case 6:
        return AS(word, word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7:
        return AS(word, word, word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8:
        return AS(word, word, word, word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    case 9:
        return AS(word, word, word, word, word, word, word, word, word)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
                                                                        a[8]);
    default:
        return -1;
    }
}

static inline int make_all(const struct call *calls, int number)
{
    int status = 0;
    for (int i = 0; i < number && status == 0; i++)
        status = make(&calls[i]);
    return status;
}

int hvbench_time(const struct call *calls, int number, const struct call *sync, int samples, int repeats,
                 int sync_each_call, double *seconds)
{
    int batches = sync_each_call ? repeats : 1, batch_size = sync_each_call ? 1 : repeats, status = 0;
    for (int sample = 0; sample < samples; sample++) {
        double spent = 0;
        for (int batch = 0; batch < batches; batch++) {
            if ((status = make(sync)) != 0)
                return status;
            double began = now();
            for (int i = 0; i < batch_size; i++)
                if ((status = make_all(calls, number)) != 0)
                    return status;
            spent += now() - began;
        }
        seconds[sample] = spent / repeats;
    }
    return 0;
}
