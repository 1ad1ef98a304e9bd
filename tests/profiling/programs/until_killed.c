/*
 * until_killed FILE THREADS: each thread makes all-reduces forever, and counts the returned calls
 * in FILE.
 */
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { MOST = 16 };

static _Atomic long *made; /* in separate cache lines */
static MPI_Comm communicators[MOST];

static void *work(void *argument)
{
    size_t thread = (size_t)argument;
    int in[64] = {0}, out[64];
    for (long call = 0;; call++) {
        MPI_Allreduce(in, out, 1 + (int)(call % 64), MPI_INT, MPI_SUM, communicators[thread]);
        atomic_store(&made[8 * thread], call + 1);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int provided, file = argc > 2 ? open(argv[1], O_RDWR) : -1;
    size_t threads = argc > 2 ? (size_t)atoi(argv[2]) : 0;
    made = mmap(NULL, MOST * 64, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (made == MAP_FAILED || threads < 1 || threads > MOST)
        return 2;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    pthread_t workers[MOST];
    for (size_t i = 0; i < threads; i++)
        MPI_Comm_dup(MPI_COMM_SELF, &communicators[i]);
    for (size_t i = 0; i < threads; i++)
        pthread_create(&workers[i], NULL, work, (void *)i);
    pthread_join(workers[0], NULL);
    return 0;
}
