# Given to Horovod's build through CMAKE_TOOLCHAIN_FILE, so that not one line of Horovod is changed.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/adapt.cmake")
# The MPI that the set-up chose, whatever other mpicxx the machine has.
set(MPI_CXX_COMPILER "$ENV{HVSCALE_BUILD_MPICXX}" CACHE FILEPATH "")
