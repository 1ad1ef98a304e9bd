/*
 * Preloaded into the launcher and the ranks of a job on one host: makes MPI's sockets listen on the
 * loopback address instead of all addresses. Neither Open MPI nor Hydra has a setting for this.
 * Sockets of the user's code are unchanged.
 */
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "init_marker/object_name.h"

#define EXPORTED __attribute__((visibility("default")))

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

/* The first characters of the names of objects that open sockets for an MPI library. */
static const char *const mpi_objects[] = {
    "libprrte", "libpmix",     "libopen-rte", "libopen-pal",     "libmpi",
    "mca_btl_tcp", "mca_oob_tcp", "mpiexec",     "hydra_pmi_proxy",
};

static bool belongs_to_mpi(const void *code)
{
    for (size_t i = 0; i < sizeof mpi_objects / sizeof *mpi_objects; i++)
        if (object_name_begins(code, mpi_objects[i]))
            return true;
    return false;
}

static bool is_stream(int socket)
{
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

/* Returns whether the address is "any", and a copy with the loopback address in `changed`. */
static bool to_loopback(const struct sockaddr *address, socklen_t length, struct sockaddr_storage *changed)
{
    if (length > sizeof *changed)
        return false;
    memcpy(changed, address, length);
    if (length >= sizeof(struct sockaddr_in) && address->sa_family == AF_INET) {
        struct in_addr *host = &((struct sockaddr_in *)changed)->sin_addr;
        bool any = host->s_addr == htonl(INADDR_ANY);
        host->s_addr = htonl(INADDR_LOOPBACK);
        return any;
    }
    if (length >= sizeof(struct sockaddr_in6) && address->sa_family == AF_INET6) {
        struct in6_addr *host = &((struct sockaddr_in6 *)changed)->sin6_addr;
        bool any = memcmp(host, &in6addr_any, sizeof *host) == 0;
        *host = in6addr_loopback;
        return any;
    }
    return false;
}

EXPORTED int bind(int socket, const struct sockaddr *address, socklen_t length)
{
    bind_function next = (bind_function)dlsym(RTLD_NEXT, "bind");
    struct sockaddr_storage changed;
    if (next == NULL) {
        errno = ENOSYS;
        return -1;
    }
    if (getenv("HVSCALE_LOOPBACK") == NULL || address == NULL || !belongs_to_mpi(__builtin_return_address(0)) ||
        !is_stream(socket) || !to_loopback(address, length, &changed))
        return next(socket, address, length);
    int result = next(socket, (struct sockaddr *)&changed, length);
    /* A host may support IPv6 without a loopback address. */
    return result != 0 && errno == EADDRNOTAVAIL ? next(socket, address, length) : result;
}
