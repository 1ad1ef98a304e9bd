/* Packs and unpacks buffers whose type is not contiguous. */
#include "data.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "broadcast.h"
#include "mpi_abi/mpi_abi.h"

enum { PIECE = 1 << 30 }; /* bytes */
enum { BLOCK = 1 << 20 }; /* elements */

/* The numbers of arguments with which a type was created. */
struct envelope {
    int64_t integers, addresses, large, types;
};

static int get_envelope(word type, struct envelope *envelope)
{
    int integers = 0, addresses = 0, types = 0, combiner, status;
    *envelope = (struct envelope){0};
    /* MPI_Type_get_envelope fails for types that were created with large counts. */
    if (mpi.type_get_envelope_c != NULL)
        return mpi.type_get_envelope_c(type, &envelope->integers, &envelope->addresses, &envelope->large,
                                       &envelope->types, &combiner);
    status = mpi.type_get_envelope(type, &integers, &addresses, &types, &combiner);
    envelope->integers = integers;
    envelope->addresses = addresses;
    envelope->types = types;
    return status;
}

/* The one type that `type` repeats, in `base`; the caller frees it if it is not predefined. */
static int base_of(word type, const struct envelope *e, word *base)
{
    int integer;
    intptr_t no_address;
    int64_t large;
    *base = 0;
    if (mpi.type_get_envelope_c != NULL)
        return mpi.type_get_contents_c(type, e->integers, 0, e->large, 1, &integer, &no_address, &large, base);
    return mpi.type_get_contents(type, (int)e->integers, 0, 1, &integer, &no_address, base);
}

/*
 * Whether the elements are contiguous and in the order of their type's signature. True only for a
 * predefined type without gaps, and for a type that only repeats such a type.
 */
static bool is_contiguous(word type)
{
    struct envelope e, base_envelope;
    long long size = 0;
    intptr_t low = 0, extent = 0;
    word base;
    if (mpi.type_size(type, &size) != 0 || mpi.type_get_extent(type, &low, &extent) != 0 || low != 0 ||
        extent != size || get_envelope(type, &e) != 0)
        return false;
    if (e.types == 0)
        return true;
    /*
     * MPI_Type_dup takes only the type, and MPI_Type_contiguous one count more. All other
     * constructors with one type take more arguments.
     */
    if (e.types != 1 || e.addresses != 0 || e.integers + e.large > 1 || base_of(type, &e, &base) != 0)
        return false;
    bool contiguous = is_contiguous(base);
    if (get_envelope(base, &base_envelope) == 0 && base_envelope.types > 0)
        mpi.type_free(&base);
    return contiguous;
}

int data_repeated_type(int64_t count, word type, word *made)
{
    intptr_t low, extent;
    word block = 0;
    *made = 0;
    int status = mpi.type_get_extent(type, &low, &extent);
    if (status == 0)
        status = mpi.type_contiguous(BLOCK, type, &block);
    if (status != 0)
        return status;
    int counts[] = {(int)(count / BLOCK), (int)(count % BLOCK)};
    intptr_t places[] = {0, (intptr_t)(count / BLOCK * BLOCK) * extent};
    char types[2 * sizeof(word)];
    memcpy(types, &block, mpi.handle_bytes);
    memcpy(types + mpi.handle_bytes, &type, mpi.handle_bytes);
    status = mpi.type_create_struct(2, counts, places, types, made);
    mpi.type_free(&block);
    return status == 0 ? mpi.type_commit(made) : status;
}

/* For an element too large for MPI_Pack, whose sizes are ints: this rank sends it to itself. */
static int copy_huge(const struct data *d, char *element, char *bytes, bool out, word self)
{
    word type;
    struct any_status ignored;
    int status = data_repeated_type((int64_t)d->element, mpi.type_byte, &type);
    if (status != 0)
        return status;
    status = out ? mpi.sendrecv(element, 1, d->type, 0, 0, bytes, 1, type, 0, 0, self, &ignored)
                 : mpi.sendrecv(bytes, 1, type, 0, 0, element, 1, d->type, 0, 0, self, &ignored);
    mpi.type_free(&type);
    return status;
}

/* Copies from the program's buffer into the packed bytes (`out`), or back. */
static int copy(const struct data *d, bool out, word self)
{
    int64_t at_once = d->element < PIECE ? PIECE / (int64_t)d->element : 1;
    int status = 0;
    for (int64_t done = 0; done < d->count && status == 0; done += at_once) {
        int count = (int)(d->count - done < at_once ? d->count - done : at_once), position = 0;
        char *elements = (char *)((uintptr_t)d->buffer + (uintptr_t)done * (uintptr_t)d->extent);
        char *bytes = d->bytes + (uint64_t)done * d->element;
        uint64_t size = (uint64_t)count * d->element;
        if (size > INT_MAX)
            status = copy_huge(d, elements, bytes, out, self);
        else if (out)
            status = mpi.pack(elements, count, d->type, bytes, (int)size, &position, self);
        else
            status = mpi.unpack(bytes, (int)size, &position, elements, count, d->type, self);
    }
    return status;
}

int data_open(struct data *d, void *buffer, int64_t count, word type, uint64_t element, bool filled, word self)
{
    *d = (struct data){.bytes = buffer, .buffer = buffer, .count = count, .type = type, .element = element};
    if (is_contiguous(type))
        return 0;
    intptr_t low;
    int status = mpi.type_get_extent(type, &low, &d->extent);
    if (status != 0)
        return status;
    d->packed = true;
    d->bytes = require_memory((size_t)count, element);
    status = filled ? copy(d, true, self) : 0;
    if (status != 0)
        data_close(d, false, self);
    return status;
}

int data_close(struct data *d, bool changed, word self)
{
    if (!d->packed)
        return 0;
    int status = changed ? copy(d, false, self) : 0;
    free(d->bytes);
    return status;
}
