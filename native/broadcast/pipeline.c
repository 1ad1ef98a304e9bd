/* Forwards chunks with non-blocking sends and receives. */
#include "pipeline.h"

#include <stdlib.h>

#include "broadcast.h"
#include "mpi_abi/mpi_abi.h"

enum { TAG = 0 };

/* Holds a single request, because the layout of an array of requests depends on the ABI. */
struct slot {
    word request;
    bool busy;
};

struct flow {
    const struct pipeline *pipeline;
    uint64_t chunks, depth;
    struct slot *receiving; /* `depth` of them */
    struct slot *sending; /* for each receiver, `depth` of them */
};

static int wait(struct slot *slot)
{
    struct any_status status;
    if (!slot->busy)
        return 0;
    slot->busy = false;
    return mpi.wait(&slot->request, &status);
}

static char *chunk_at(const struct pipeline *p, uint64_t number)
{
    return p->data + number * p->chunk;
}

static int receive(struct flow *flow, uint64_t number)
{
    const struct pipeline *p = flow->pipeline;
    struct slot *slot = &flow->receiving[number % flow->depth];
    int bytes = (int)bytes_of_chunk(p->bytes, p->chunk, number);
    int status = mpi.irecv(chunk_at(p, number), bytes, mpi.type_byte, p->from, TAG, p->communicator, &slot->request);
    slot->busy = status == 0;
    return status;
}

static int send(struct flow *flow, uint64_t number)
{
    const struct pipeline *p = flow->pipeline;
    int bytes = (int)bytes_of_chunk(p->bytes, p->chunk, number), status = 0;
    for (int i = 0; i < p->receivers && status == 0; i++) {
        struct slot *slot = &flow->sending[(size_t)i * flow->depth + number % flow->depth];
        status = wait(slot);
        if (status == 0) {
            status =
                mpi.isend(chunk_at(p, number), bytes, mpi.type_byte, p->to[i], TAG, p->communicator, &slot->request);
            slot->busy = status == 0;
        }
    }
    return status;
}

static int forward_all(struct flow *flow)
{
    const struct pipeline *p = flow->pipeline;
    int status = 0;
    for (uint64_t i = 0; p->from >= 0 && i < flow->depth && status == 0; i++)
        status = receive(flow, i);
    for (uint64_t i = 0; i < flow->chunks && status == 0; i++) {
        if (p->from >= 0) {
            status = wait(&flow->receiving[i % flow->depth]);
            if (status == 0 && i + flow->depth < flow->chunks)
                status = receive(flow, i + flow->depth);
        }
        if (status == 0)
            status = send(flow, i);
        if (status == 0 && p->arrived != NULL)
            p->arrived(p->context, chunk_at(p, i), bytes_of_chunk(p->bytes, p->chunk, i));
    }
    for (size_t i = 0; i < (size_t)p->receivers * flow->depth && status == 0; i++)
        status = wait(&flow->sending[i]);
    return status;
}

/* Abandons pending requests after an error. */
static void abandon(struct slot *slots, size_t count, bool cancel)
{
    for (size_t i = 0; i < count; i++) {
        if (slots[i].busy && cancel)
            mpi.cancel(&slots[i].request);
        if (slots[i].busy)
            mpi.request_free(&slots[i].request);
    }
}

int pipeline_run(const struct pipeline *p)
{
    struct flow flow = {.pipeline = p, .chunks = chunks_of(p->bytes, p->chunk)};
    flow.depth = flow.chunks < (uint64_t)p->depth ? flow.chunks : (uint64_t)p->depth;
    size_t sending = (size_t)p->receivers * flow.depth;
    flow.receiving = require_memory(flow.depth + sending, sizeof *flow.receiving);
    flow.sending = flow.receiving + flow.depth;
    int status = forward_all(&flow);
    if (status != 0) {
        abandon(flow.receiving, flow.depth, true);
        abandon(flow.sending, sending, false);
    }
    free(flow.receiving);
    return status;
}
