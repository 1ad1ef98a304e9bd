# Read at the end of each project() of Horovod's build.

# Horovod 0.28.1 asks for C++14 and passes the flag last; PyTorch's headers need C++20. What CMake spells for 14 (and 11) becomes 20.
set(CMAKE_CXX11_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++20")

# Horovod 0.28.1 uses these headers without including them; g++ 13 and later no longer include them from others. With
# <version>, its flatbuffers finds std::span in C++20: g++ 14 rejects the class that it has instead.
set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -include version -include cstdint -include stdexcept -include string")

# No debug information: the wheel shrinks from 20 MB to 1 MB. Horovod itself turns this -O2 into -O3.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")

# The wheel goes into other environments than the one it was built in: it finds libmpi and PyTorch relative to itself.
# RUNPATH, not RPATH, so that LD_LIBRARY_PATH can put another MPI of the same ABI first.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ENV{HVSCALE_BUILD_RUNPATH}")
set(CMAKE_SHARED_LINKER_FLAGS "${CMAKE_SHARED_LINKER_FLAGS} -Wl,--enable-new-dtags")
