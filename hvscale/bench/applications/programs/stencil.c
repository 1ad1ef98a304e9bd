/* A 3-D stencil: each new value is computed from the cell and its six neighbours. Each rank has a cuboid of cells and
 * exchanges its faces with the neighbours before every step.
 * Usage: stencil x=200 y=400 z=600 steps=300 work=1 */
#include "common.h"
#include "decomposition.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { AXES = 3 };

/* A rank's cuboid: `size` cells from cell `first` of the box. In memory it has a halo, one layer of the neighbours'
 * cells on every side. */
struct cuboid {
    long long cells[AXES], first[AXES];
    size_t size[AXES], stride[AXES];
};

static size_t at(const struct cuboid *own, size_t x, size_t y, size_t z)
{
    return x * own->stride[0] + y * own->stride[1] + z;
}

static size_t cells_with_halo(const struct cuboid *own)
{
    return (own->size[0] + 2) * own->stride[0];
}

/* A datatype for each face (YZ, XZ, XY): one layer of cells across that axis. */
static void make_faces(const struct cuboid *own, MPI_Datatype faces[AXES])
{
    int whole[AXES], layer[AXES], from[AXES] = {0, 0, 0};
    for (int axis = 0; axis < AXES; axis++)
        whole[axis] = (int)own->size[axis] + 2;
    for (int across = 0; across < AXES; across++) {
        for (int axis = 0; axis < AXES; axis++)
            layer[axis] = axis == across ? 1 : (int)own->size[axis];
        MPI_Type_create_subarray(AXES, whole, layer, from, MPI_ORDER_C, MPI_DOUBLE, &faces[across]);
        MPI_Type_commit(&faces[across]);
    }
}

/* The first cell of a layer across an axis. Layer 0 and the last layer are the halo. */
static size_t layer_start(const struct cuboid *own, int axis, size_t layer)
{
    size_t place[AXES] = {1, 1, 1};
    place[axis] = layer;
    return at(own, place[0], place[1], place[2]);
}

static void exchange_halos(double *values, const struct cuboid *own, MPI_Datatype faces[AXES], MPI_Comm grid)
{
    MPI_Request requests[4 * AXES];
    int count = 0;
    for (int axis = 0; axis < AXES; axis++) {
        int below, above;
        size_t last = own->size[axis];
        MPI_Cart_shift(grid, axis, 1, &below, &above);
        MPI_Irecv(values + layer_start(own, axis, 0), 1, faces[axis], below, 2 * axis, grid, &requests[count++]);
        MPI_Irecv(values + layer_start(own, axis, last + 1), 1, faces[axis], above, 2 * axis + 1, grid, &requests[count++]);
        MPI_Isend(values + layer_start(own, axis, 1), 1, faces[axis], below, 2 * axis + 1, grid, &requests[count++]);
        MPI_Isend(values + layer_start(own, axis, last), 1, faces[axis], above, 2 * axis, grid, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
}

/* Each cell becomes the mean of itself and its neighbours; repeated `work` times with the old neighbours. Parentheses fix
 * the order of the sum, so that the result's bits do not depend on the decomposition. */
static void step(const double *restrict old, double *restrict new, const struct cuboid *own, long long work)
{
    size_t over_x = own->stride[0], over_y = own->stride[1];
    for (size_t x = 1; x <= own->size[0]; x++) {
        for (size_t y = 1; y <= own->size[1]; y++) {
            size_t row = at(own, x, y, 0);
            for (size_t i = row + 1; i <= row + own->size[2]; i++) {
                double around = ((old[i - over_x] + old[i + over_x]) + (old[i - over_y] + old[i + over_y])) +
                                (old[i - 1] + old[i + 1]);
                double value = old[i];
                for (long long again = 0; again < work; again++)
                    value = (value + around) / 7;
                new[i] = value;
            }
        }
    }
}

/* The index of a cell in the whole box. */
static uint64_t global_index(const struct cuboid *own, size_t x, size_t y, size_t z)
{
    uint64_t place[AXES] = {x - 1, y - 1, z - 1};
    for (int axis = 0; axis < AXES; axis++)
        place[axis] += (uint64_t)own->first[axis];
    return (place[0] * (uint64_t)own->cells[1] + place[1]) * (uint64_t)own->cells[2] + place[2];
}

/* Fills the cells with pseudo-random numbers. The halo around the whole box stays zero. */
static void fill(double *values, const struct cuboid *own)
{
    for (size_t x = 1; x <= own->size[0]; x++)
        for (size_t y = 1; y <= own->size[1]; y++)
            for (size_t z = 1; z <= own->size[2]; z++)
                values[at(own, x, y, z)] = random_at(global_index(own, x, y, z));
}

/* A sum of hashes of each cell's index and bits. It does not depend on the decomposition, and changes if any bit of a
 * cell changes. */
static uint64_t checksum(const double *values, const struct cuboid *own)
{
    uint64_t sum = 0;
    for (size_t x = 1; x <= own->size[0]; x++)
        for (size_t y = 1; y <= own->size[1]; y++)
            for (size_t z = 1; z <= own->size[2]; z++)
                sum += mix(mix(global_index(own, x, y, z)) ^ bits_of(values[at(own, x, y, z)]));
    return sum;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    const char *names[AXES] = {"x", "y", "z"};
    struct cuboid own;
    for (int axis = 0; axis < AXES; axis++)
        own.cells[axis] = read_parameter(argc, argv, names[axis], 1);
    long long steps = read_parameter(argc, argv, "steps", 1), work = read_parameter(argc, argv, "work", 1);
    int rank, np, blocks[AXES], endless[AXES] = {0, 0, 0}, place[AXES];
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    require(
        decompose(own.cells, np, blocks), "stencil",
        "np must be a product of three factors, none larger than the cells along its axis"
    );
    MPI_Comm grid;
    MPI_Cart_create(MPI_COMM_WORLD, AXES, blocks, endless, 0, &grid);
    MPI_Comm_rank(grid, &rank);
    MPI_Cart_coords(grid, rank, AXES, place);
    for (int axis = 0; axis < AXES; axis++) {
        own.first[axis] = first_cell(own.cells[axis], blocks[axis], place[axis]);
        own.size[axis] = (size_t)(first_cell(own.cells[axis], blocks[axis], place[axis] + 1) - own.first[axis]);
    }
    own.stride[2] = 1;
    own.stride[1] = own.size[2] + 2;
    own.stride[0] = (own.size[1] + 2) * own.stride[1];

    double *old = allocate(cells_with_halo(&own), sizeof *old), *new = allocate(cells_with_halo(&own), sizeof *new);
    MPI_Datatype faces[AXES];
    make_faces(&own, faces);
    fill(old, &own);

    double start = start_timer();
    for (long long done = 0; done < steps; done++) {
        exchange_halos(old, &own, faces, grid);
        step(old, new, &own, work);
        double *other = old;
        old = new;
        new = other;
    }
    double seconds = slowest_seconds(start);

    uint64_t own_sum = checksum(old, &own), sum = 0;
    MPI_Reduce(&own_sum, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf(
            "{\"seconds\": %.9f, \"checksum\": \"%016" PRIx64 "\", \"blocks\": [%d, %d, %d]}\n",
            seconds, sum, blocks[0], blocks[1], blocks[2]
        );
    for (int axis = 0; axis < AXES; axis++)
        MPI_Type_free(&faces[axis]);
    MPI_Comm_free(&grid);
    free(old);
    free(new);
    MPI_Finalize();
    return 0;
}
