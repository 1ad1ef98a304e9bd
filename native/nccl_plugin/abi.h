/*
 * NCCL's profiler interface, versions 1 to 6, limited to what this plug-in uses. Order and types of
 * the fields follow src/include/plugin/nccl_profiler.h and profiler/profiler_v*.h of NVIDIA/nccl
 * (2.23 to 2.30).
 */
#ifndef HVPROF_NCCL_ABI_H
#define HVPROF_NCCL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NCCL_SUCCESS = 0 };

/* Kinds of events, also the bits of the activation mask. */
enum {
    NCCL_COLLECTIVE = 1 << 1,
    NCCL_POINT_TO_POINT = 1 << 2,
    NCCL_KERNEL_CHANNEL = 1 << 6, /* from version 3 on */
    NCCL_COPY_ENGINE_COLLECTIVE = 1 << 12, /* from version 6 on */
};

enum { NCCL_KERNEL_CHANNEL_STOP = 22 }; /* event state, from version 4 on */

struct nccl_event_v1 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t communicator;
            uint64_t sequence;
            uint8_t function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            uint8_t datatype;
            uint32_t operator;
            size_t traffic_bytes;
            uint8_t channels;
            uint8_t warps;
            uint8_t algorithm;
            uint8_t protocol;
            int is_collnet;
            int is_nvls;
        } collective;
        struct {
            const char *name;
            uint64_t communicator;
            uint8_t function;
            void *buffer;
            uint8_t datatype;
            size_t count;
            int peer;
        } point_to_point;
    };
};

struct nccl_event_v2 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t communicator;
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            size_t traffic_bytes;
            uint8_t channels;
            uint8_t warps;
            const char *algorithm;
            const char *protocol;
        } collective;
        struct {
            const char *name;
            uint64_t communicator;
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
        } point_to_point;
    };
};

struct nccl_event_v3 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            const char *name;
            uint64_t communicator;
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels;
            uint8_t warps;
            const char *algorithm;
            const char *protocol;
        } collective;
        struct {
            const char *name;
            uint64_t communicator;
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
        } point_to_point;
        struct {
            uint8_t channel;
        } kernel;
    };
};

struct nccl_event_v4 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct {
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels;
            uint8_t warps;
            const char *algorithm;
            const char *protocol;
        } collective;
        struct {
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
        } point_to_point;
        struct {
            uint8_t channel;
            uint64_t timer; /* the GPU's clock, nanoseconds */
        } kernel;
    };
};

/* Versions 5 and 6 have the same fields; version 6 adds the copy engine's events. */
struct nccl_event_v6 {
    uint64_t type;
    void *parent;
    int rank;
    union {
        struct {
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels;
            uint8_t warps;
            const char *algorithm;
            const char *protocol;
            void *group;
        } collective;
        struct {
            const char *function;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
            void *group;
        } point_to_point;
        struct {
            uint8_t channel;
            uint64_t timer;
        } kernel;
        struct {
            uint64_t sequence;
            const char *function;
            const void *send_buffer;
            void *receive_buffer;
            size_t count;
            int root;
            const char *datatype;
            const char *synchronization;
            bool synchronizes_in_batch;
            uint32_t batch_size;
            uint32_t batches;
            uint32_t copy_engine_sequence;
            void *stream;
        } copy_engine;
    };
};

union nccl_state_arguments {
    struct {
        uint64_t timer;
    } kernel;
};

/* NCCL's logger, which this plug-in does not call. */
typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

#define NCCL_PROFILER_FROM_START(EVENT)                                                                       \
    int (*start)(void *context, void **handle, EVENT *event);                                                 \
    int (*stop)(void *handle);                                                                                \
    int (*record_state)(void *handle, int state, union nccl_state_arguments *arguments);                      \
    int (*finalize)(void *context)

struct nccl_profiler_v1 {
    const char *name;
    int (*init)(void **context, int *mask);
    NCCL_PROFILER_FROM_START(struct nccl_event_v1);
};

struct nccl_profiler_v2 {
    const char *name;
    int (*init)(void **context, int *mask);
    NCCL_PROFILER_FROM_START(struct nccl_event_v2);
};

struct nccl_profiler_v3 {
    const char *name;
    int (*init)(void **context, int *mask);
    NCCL_PROFILER_FROM_START(struct nccl_event_v3);
};

struct nccl_profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *communicator_name, uint64_t communicator, int nodes, int ranks,
                int rank, nccl_logger logger);
    NCCL_PROFILER_FROM_START(struct nccl_event_v4);
};

struct nccl_profiler_v6 {
    const char *name;
    int (*init)(void **context, uint64_t communicator, int *mask, const char *communicator_name, int nodes, int ranks,
                int rank, nccl_logger logger);
    NCCL_PROFILER_FROM_START(struct nccl_event_v6);
};

_Static_assert(offsetof(struct nccl_event_v1, collective) == 24, "layout");
_Static_assert(offsetof(struct nccl_event_v6, collective) == 24, "layout");
_Static_assert(offsetof(struct nccl_event_v1, collective.algorithm) == 106, "layout");
_Static_assert(offsetof(struct nccl_event_v2, collective.algorithm) == 112, "layout");
_Static_assert(offsetof(struct nccl_event_v3, collective.algorithm) == 104, "layout");
_Static_assert(offsetof(struct nccl_event_v4, collective.algorithm) == 88, "layout");
_Static_assert(offsetof(struct nccl_event_v6, copy_engine.datatype) == 72, "layout");

#endif
