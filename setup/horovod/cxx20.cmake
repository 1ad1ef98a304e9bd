# Horovod 0.28.1 asks for C++14 and passes the flag last; PyTorch's headers need C++20. What CMake spells for 14 (and 11) becomes 20.
set(CMAKE_CXX11_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++20")
